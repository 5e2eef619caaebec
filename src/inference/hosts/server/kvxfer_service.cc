#include "inference/hosts/server/kvxfer_service.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>

#include "inference/hosts/server/limits.h"
#include "kvxfer.pb.h"
#include "os/framed_message.h"
#include "os/log.h"

namespace tie::runtime_host {
namespace {

constexpr size_t kMaxRequestBytes = 256;
constexpr int64_t kMessageMs = 50;  // a message is one small packet: whoever sends half of one is let go
constexpr int kTickMs = 1000;

}  // namespace

class KvxferService::ImportBuffer final : public engine::KvImport {
 public:
  // The writer has finished: nothing is waited for later.
  static Result<std::shared_ptr<ImportBuffer>> open(os::Fd fd, const cache::KvDescription& own) {
    TIE_TRY(auto consumer, cache::KvConsumer::attach(std::move(fd)));
    cache::KvDescription wanted = own;
    wanted.block_count = consumer.description().block_count;
    if (consumer.description() != wanted || wanted.block_count > own.block_count)
      return fail(Code::kFailedPrecondition, "the blocks are not those of this model, release and layout");
    TIE_TRY(uint32_t tokens, consumer.wait_finished(Deadline::in_ms(0)));
    if (tokens == 0 || tokens % own.block_tokens != 0)
      return fail(Code::kFailedPrecondition, "the token count is not one of whole blocks");
    uint32_t blocks = tokens / own.block_tokens;
    for (uint32_t i = 0; i < blocks; ++i) {
      TIE_TRY(auto block, consumer.committed_block(i));
      (void)block;
    }
    return std::shared_ptr<ImportBuffer>(new ImportBuffer(std::move(consumer), blocks));
  }
  uint32_t block_count() const override { return blocks_; }
  Result<void> read(uint32_t index, std::span<std::byte> out) override { return consumer_.read_block(index, out); }

 private:
  ImportBuffer(cache::KvConsumer consumer, uint32_t blocks) : consumer_(std::move(consumer)), blocks_(blocks) {}
  cache::KvConsumer consumer_;
  const uint32_t blocks_;  // the buffer may have more, which its writer gave up
};

class KvxferService::ExportBuffer final : public engine::KvExport {
 public:
  ExportBuffer(cache::KvProducer producer, uint32_t first_block)
      : producer_(std::move(producer)), first_(first_block) {}
  uint32_t first_block() const override { return first_; }
  uint32_t max_blocks() const override { return producer_.description().block_count; }
  Result<void> write(uint32_t index, std::span<const std::byte> block) override {
    if (gone_) return fail(Code::kCancelled, "the app has gone");
    return producer_.write_block(index, block);
  }
  void finish(uint32_t blocks) override {
    producer_.finish(blocks * producer_.description().block_tokens);
    ended_ms_ = monotonic_ms();
  }
  void abandon() override {
    producer_.abort();
    ended_ms_ = monotonic_ms();
  }
  void reader_gone() { gone_ = true; }
  bool held_too_long(int64_t now_ms) const { return ended_ms_ != 0 && now_ms - ended_ms_ > kMaxExportHeldMs; }
  int fd() const { return producer_.fd(); }

 private:
  cache::KvProducer producer_;
  const uint32_t first_;
  std::atomic<bool> gone_{false};
  std::atomic<int64_t> ended_ms_{0};
};

struct KvxferService::Connection {
  os::Fd socket;
  bool offered = false;
  std::string import_handle, export_handle;
  std::shared_ptr<ExportBuffer> out;  // lives until the app has read it and hangs up
};

Result<std::unique_ptr<KvxferService>> KvxferService::start(os::Fd listener, const cache::KvDescription& own) {
  TIE_TRY(auto ends, os::socket_pair());
  return std::unique_ptr<KvxferService>(
      new KvxferService(std::move(listener), own, std::move(ends.first), std::move(ends.second)));
}

KvxferService::KvxferService(os::Fd listener, const cache::KvDescription& own, os::Fd stop_reader, os::Fd stop_writer)
    : listener_(std::move(listener)),
      stop_reader_(std::move(stop_reader)),
      stop_writer_(std::move(stop_writer)),
      own_(own),
      thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "kvxfer");
}

KvxferService::~KvxferService() {
  stop_writer_.close();
  thread_.join();
}

std::shared_ptr<engine::KvImport> KvxferService::take_import(const std::string& handle) {
  std::lock_guard lock(mutex_);
  auto found = imports_.extract(handle);
  if (!found) return nullptr;
  return std::move(found.mapped());
}

std::shared_ptr<engine::KvExport> KvxferService::take_export(const std::string& handle) {
  std::lock_guard lock(mutex_);
  auto found = exports_.extract(handle);
  if (!found) return nullptr;
  ++open_exports_;
  return std::move(found.mapped());
}

bool KvxferService::wait_quiet(Deadline deadline) const {
  while (open_exports_ > 0 && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return open_exports_ == 0;
}

void KvxferService::run() {
  std::vector<std::unique_ptr<Connection>> connections;
  int64_t next_tick_ms = monotonic_ms() + kTickMs;
  for (;;) {
    bool more = connections.size() < kMaxKvxferConnections;
    std::vector<pollfd> polls = {{stop_reader_.get(), POLLIN, 0}, {more ? listener_.get() : -1, POLLIN, 0}};
    for (auto& connection : connections) polls.push_back({connection->socket.get(), POLLIN, 0});
    int n = ::poll(polls.data(), polls.size(), kTickMs);
    if (n > 0 && polls[0].revents != 0) break;
    for (size_t i = 0; n > 0 && i < connections.size(); ++i)
      if (polls[i + 2].revents != 0 && !serve_one(*connections[i])) {
        forget(*connections[i]);
        connections[i].reset();
      }
    std::erase(connections, nullptr);
    if (n > 0 && polls[1].revents != 0)
      if (auto socket = os::accept_unix(listener_.get(), Deadline::in_ms(0)))
        connections.push_back(std::make_unique<Connection>(Connection{.socket = std::move(*socket)}));
    if (monotonic_ms() < next_tick_ms) continue;
    next_tick_ms = monotonic_ms() + kTickMs;
    look_after(connections);
  }
  for (auto& connection : connections) forget(*connection);
}

// An app that does not read what it asked for does not keep it.
void KvxferService::look_after(std::vector<std::unique_ptr<Connection>>& connections) {
  int64_t now_ms = monotonic_ms();
  for (auto& connection : connections) {
    if (!connection->out || !connection->out->held_too_long(now_ms)) continue;
    forget(*connection);
    connection.reset();
  }
  std::erase(connections, nullptr);
}

void KvxferService::forget(Connection& connection) {
  std::shared_ptr<ImportBuffer> unused;
  {
    std::lock_guard lock(mutex_);
    if (auto found = imports_.extract(connection.import_handle)) unused = std::move(found.mapped());
    bool taken = connection.out && !exports_.extract(connection.export_handle);
    if (taken) --open_exports_;
  }
  if (connection.out) connection.out->reader_gone();
  connection.out.reset();
}

// False: the connection is over.
bool KvxferService::serve_one(Connection& connection) {
  int socket = connection.socket.get();
  auto received = os::receive_message<v1::KvxferRequest>(socket, kMaxRequestBytes, Deadline::in_ms(kMessageMs), 1);
  if (!received) return false;
  v1::KvxferReply reply;
  int reply_fd = -1;
  auto done = act(connection, received->message, received->fds, reply, reply_fd);
  if (!done) {
    if (received->message.has_offer_import()) {
      ++refused_imports_;
      TIE_LOG("afm-runtime", "a KV import is refused with {}; {} so far", done.error().code, refused_imports_.load());
    }
    reply.mutable_error()->set_code(static_cast<v1::ErrorCode>(done.error().code));
    reply.mutable_error()->set_message(done.error().message);
  }
  std::span<const int> fds = reply_fd >= 0 ? std::span<const int>(&reply_fd, 1) : std::span<const int>();
  return os::send_message(socket, reply, Deadline::in_ms(kMessageMs), fds).has_value();
}

Result<void> KvxferService::act(Connection& connection, const v1::KvxferRequest& request, std::vector<os::Fd>& fds,
                                v1::KvxferReply& reply, int& reply_fd) {
  auto text = [](const auto& digest) { return std::string(digest.begin(), digest.end()); };
  reply.set_model_id(text(own_.model_id));
  reply.set_release_id(text(own_.release_id));
  reply.set_layout_id(text(own_.layout_id));
  reply.set_block_tokens(own_.block_tokens);
  reply.set_block_bytes(own_.block_bytes);
  switch (request.kind_case()) {
    case v1::KvxferRequest::kDescribe:
      return {};
    case v1::KvxferRequest::kOfferImport:
      return offer_import(connection, request.offer_import().handle(), fds);
    case v1::KvxferRequest::kRequestExport:
      return request_export(connection, request, reply_fd);
    default:
      return fail(Code::kUnsupportedFeature, "this runtime does not know that request");
  }
}

// One of each for a connection: it belongs to one request.
Result<void> KvxferService::offer_import(Connection& connection, const std::string& handle, std::vector<os::Fd>& fds) {
  if (handle.size() != kKvHandleBytes || fds.size() != 1)
    return fail(Code::kBadRequest, "an import has a handle of 16 bytes and one descriptor");
  if (std::exchange(connection.offered, true)) return fail(Code::kFailedPrecondition, "an import is offered once");
  TIE_TRY(auto buffer, ImportBuffer::open(std::move(fds[0]), own_));
  std::lock_guard lock(mutex_);
  if (!imports_.emplace(handle, std::move(buffer)).second) return fail(Code::kAlreadyExists, "that handle is in use");
  connection.import_handle = handle;
  return {};
}

Result<void> KvxferService::request_export(Connection& connection, const v1::KvxferRequest& request, int& reply_fd) {
  const v1::RequestExport& wanted = request.request_export();
  if (wanted.handle().size() != kKvHandleBytes) return fail(Code::kBadRequest, "an export has a handle of 16 bytes");
  if (connection.out) return fail(Code::kFailedPrecondition, "an export is requested once");
  cache::KvDescription description = own_;
  uint32_t first = wanted.first_token() / own_.block_tokens;
  if (wanted.first_token() % own_.block_tokens != 0 || first >= own_.block_count ||
      wanted.max_tokens() < own_.block_tokens)
    return fail(Code::kOutOfRange, "an export begins at a whole block of a sequence and has at least one");
  description.block_count = std::min(wanted.max_tokens() / own_.block_tokens, own_.block_count - first);
  TIE_TRY(auto producer, cache::KvProducer::create(description));
  auto buffer = std::make_shared<ExportBuffer>(std::move(producer), first);
  std::lock_guard lock(mutex_);
  if (!exports_.emplace(wanted.handle(), buffer).second) return fail(Code::kAlreadyExists, "that handle is in use");
  connection.export_handle = wanted.handle();
  reply_fd = buffer->fd();
  connection.out = std::move(buffer);
  return {};
}

}  // namespace tie::runtime_host
