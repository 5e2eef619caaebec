#include "supervision/model_owner/owner_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <vector>

#include "cache/prefix/pool_owner.h"
#include "os/framed_message.h"
#include "os/log.h"
#include "owner.pb.h"
#include "supervision/model_owner/gpu_weights.h"

namespace tie::owner {
namespace {

constexpr int64_t kLoanLookMs = 3'600'000;  // a connection with a loan is never idle
constexpr int64_t kLookReplyMs = 500;       // a runtime that waits for a look hears how far it is so often
constexpr mode_t kEdgeFolderMode = 0750;    // as those that the launcher makes
constexpr int kNewModelLookMs = 1000;       // between looks whether the store has another model

void set_error(v1::OwnerReply& reply, const Error& error) {
  reply.mutable_error()->set_code(static_cast<v1::ErrorCode>(error.code));
  reply.mutable_error()->set_message(error.message);
}

void fill_status(const std::vector<ModelRow>& rows, v1::OwnerReply& reply) {
  for (const ModelRow& row : rows) {
    v1::ModelState& state = *reply.add_models();
    state.set_model(row.name);
    state.set_state(load_state_name(row.state));
    state.set_message(row.message);
    state.set_removed(row.removed);
    state.set_weight_file_reads(row.weight_file_reads);
    state.set_attaches(row.attaches);
    state.set_generation(row.generation);
    if (row.loaded == nullptr) continue;
    state.set_model_id(row.loaded->model_id.data(), row.loaded->model_id.size());
    state.set_device(row.loaded->gpu != nullptr ? "cuda" : "cpu");
    state.set_load_ms(static_cast<uint64_t>(row.loaded->load_ms));
    state.set_prefix_ready(row.loaded->pool != nullptr && row.loaded->pool->ready());
  }
}

// The model that a request is about; null: it is about none.
const std::string* model_of(const v1::OwnerRequest& request) {
  switch (request.kind_case()) {
    case v1::OwnerRequest::kAttach:
      return &request.attach().model();
    case v1::OwnerRequest::kPreparePrefix:
      return &request.prepare_prefix().model();
    case v1::OwnerRequest::kSealPrefix:
      return &request.seal_prefix().model();
    case v1::OwnerRequest::kAttachPrefix:
      return &request.attach_prefix().model();
    case v1::OwnerRequest::kResetPrefix:
      return &request.reset_prefix().model();
    default:
      return nullptr;
  }
}

}  // namespace

struct OwnerServer::Connection {
  std::string model;  // of the door that it came through; empty: the operator's
  os::Fd socket;
  std::thread thread;
  std::atomic<bool> done{false};
  std::atomic<int64_t> idle_since_ms{0};  // 0 while a request is being served, or something is lent
  bool displaced = false;                 // its place is another's; under the server's mutex
  std::shared_ptr<const LoadedModel> lent_model;
  std::vector<std::shared_ptr<GpuLoan>> loans;  // of that model's GPU weights, one a rank; end with the connection
  bool lent = false;                            // a handle of them has been sent

  void let_go() {
    loans.clear();
    lent_model.reset();
  }
};

// A reply and the descriptors that go with it; the model keeps them open until the reply is sent.
struct OwnerServer::Answer {
  v1::OwnerReply reply;
  std::vector<int> fds;
  std::shared_ptr<const LoadedModel> model;
  os::Fd passed;
};

OwnerServer::OwnerServer(ModelStore& store, OwnerServerOptions options) : store_(store), options_(std::move(options)) {}

OwnerServer::~OwnerServer() = default;

Result<void> OwnerServer::serve_models_in(const std::string& folder) {
  if (::mkdir(folder.c_str(), kEdgeFolderMode) != 0 && errno != EEXIST) return fail_errno("making " + folder, errno);
  models_folder_ = folder;
  open_doors();
  return {};
}

void OwnerServer::open_doors() {
  if (models_folder_.empty()) return;
  for (const ModelRow& row : store_.rows()) {
    const auto [door, first_try] = doors_.try_emplace(row.name);
    if (door->second) continue;
    const std::string folder = models_folder_ + "/" + row.name;
    if (::mkdir(folder.c_str(), kEdgeFolderMode) != 0 && errno != EEXIST) continue;
    auto listening = os::listen_unix(folder + "/" + kModelSocketFile);
    if (listening)
      door->second = std::move(*listening);
    else if (first_try)  // no descriptors, a path too long: not another model's fault, and tried again
      TIE_LOG("tie-model-owner", "{} has no socket: {}", os::LogWord(row.name), listening.error().code);
  }
}

Result<void> OwnerServer::run(int listener, int stop_fd) {
  Result<void> outcome;
  for (;;) {
    std::vector<Door> doors = {{"", listener}};
    for (const auto& [model, socket] : doors_) doors.push_back({model, socket.get()});
    std::vector<pollfd> polls = {{stop_fd, POLLIN, 0}};
    for (const Door& door : doors) polls.push_back({door.listener, POLLIN, 0});
    int n = ::poll(polls.data(), polls.size(), kNewModelLookMs);
    if (n < 0 && errno != EINTR) {
      outcome = fail_errno("waiting for connections", errno);
      break;
    }
    reap();
    if (n > 0 && polls[0].revents != 0) break;
    for (size_t i = 0; n > 0 && i < doors.size(); ++i)
      if (polls[i + 1].revents != 0) accept_from(doors[i]);
    open_doors();
  }
  store_.stop();
  for (auto& connection : connections_) ::shutdown(connection->socket.get(), SHUT_RDWR);
  for (auto& connection : connections_) connection->thread.join();
  connections_.clear();
  return outcome;
}

void OwnerServer::accept_from(const Door& door) {
  auto socket = os::accept_unix(door.listener, Deadline::in_ms(0));
  if (!socket) return;  // the client has gone again, or descriptors ran out for a moment
  if (!make_room(door.model)) return;
  auto connection = std::make_unique<Connection>();
  connection->model = door.model;
  connection->socket = std::move(*socket);
  connection->idle_since_ms = monotonic_ms();
  Connection& served = *connection;
  std::lock_guard lock(mutex_);
  connections_.push_back(std::move(connection));
  served.thread = std::thread([this, &served] { serve(served); });
}

void OwnerServer::reap() {
  std::lock_guard lock(mutex_);
  connections_.remove_if([](std::unique_ptr<Connection>& connection) {
    if (!connection->done) return false;
    connection->thread.join();
    return true;
  });
}

bool OwnerServer::make_room(const std::string& model) {
  std::lock_guard lock(mutex_);
  size_t live = 0;
  Connection* oldest = nullptr;
  for (auto& connection : connections_) {
    if (connection->done || connection->displaced || connection->model != model) continue;
    ++live;
    int64_t since = connection->idle_since_ms;
    if (since != 0 && (oldest == nullptr || since < oldest->idle_since_ms)) oldest = connection.get();
  }
  if (live < options_.max_connections) return true;
  if (oldest == nullptr) return false;
  oldest->displaced = true;
  ::shutdown(oldest->socket.get(), SHUT_RDWR);
  return true;
}

bool OwnerServer::begin_answer(Connection& connection) {
  std::lock_guard lock(mutex_);
  if (!connection.displaced) connection.idle_since_ms = 0;
  return !connection.displaced;
}

void OwnerServer::serve(Connection& connection) {
  int socket = connection.socket.get();
  for (;;) {
    const bool lends = !connection.loans.empty();
    if (!os::wait_readable(socket, Deadline::in_ms(lends ? kLoanLookMs : options_.idle_ms))) {
      if (lends) continue;
      break;
    }
    auto received =
        os::receive_message<v1::OwnerRequest>(socket, kMaxRequestBytes, Deadline::in_ms(options_.message_ms), 0);
    if (!received || !begin_answer(connection)) break;
    Answer reply = answer(connection, received->message);
    bool sent = os::send_message(socket, reply.reply, Deadline::in_ms(options_.message_ms), reply.fds).has_value();
    if (connection.loans.empty()) connection.idle_since_ms = monotonic_ms();
    if (!sent) break;
  }
  connection.let_go();
  // Tells the peer now; the descriptor itself is closed when the thread has been joined.
  ::shutdown(socket, SHUT_RDWR);
  connection.done = true;
}

OwnerServer::Answer OwnerServer::answer(Connection& connection, const v1::OwnerRequest& request) {
  auto answered = [&]() -> Result<Answer> {
    if (request.kind_case() == v1::OwnerRequest::KIND_NOT_SET)
      return fail(Code::kUnsupportedFeature, "this owner does not know that request");
    return connection.model.empty() ? operator_request(request) : model_request(connection, request);
  }();
  if (answered) return std::move(*answered);
  Answer out;
  set_error(out.reply, answered.error());
  return out;
}

Result<OwnerServer::Answer> OwnerServer::operator_request(const v1::OwnerRequest& request) {
  if (!request.has_status() && !request.has_reload())
    return fail(Code::kPermissionDenied, "a model is handed out on its own socket alone");
  if (request.has_reload()) (void)store_.refresh();
  Answer out;
  fill_status(store_.rows(), out.reply);
  out.reply.set_instance_id(instance_id_);
  return out;
}

Result<OwnerServer::Answer> OwnerServer::model_request(Connection& connection, const v1::OwnerRequest& request) {
  const std::string* asked = model_of(request);
  if (asked == nullptr || *asked != connection.model)
    return fail(Code::kPermissionDenied, "this socket answers for the model " + connection.model + " alone");
  return request.has_attach() ? attach_model(connection, request) : prefix_request(*asked, request);
}

Result<OwnerServer::Answer> OwnerServer::attach_model(Connection& connection, const v1::OwnerRequest& request) {
  const v1::AttachModel& attach = request.attach();
  Answer out;
  TIE_TRY(out.model, store_.attach(attach.model(), Deadline::in_ms(options_.attach_wait_ms)));
  const bones::RankPlace grid = out.model->grid;
  if (attach.rank() >= grid.count() || (attach.rank_count() != 0 && attach.rank_count() != grid.count()))
    return fail(Code::kUnsupportedFeature, "weights are packed for " + std::to_string(grid.count()) + " ranks");
  v1::ModelHandle& handle = *out.reply.mutable_model();
  handle.set_tensor_ranks(grid.tensor_ranks);
  handle.set_stages(grid.stages);
  handle.set_kv_cache(out.model->kv_cache);
  handle.set_gpu_portable_kernels(!out.model->gpu_fast_kernels);
  handle.set_model(out.model->name);
  handle.set_model_id(out.model->model_id.data(), out.model->model_id.size());
  handle.set_release_id(options_.release_id.data(), options_.release_id.size());
  handle.set_weights_bytes(out.model->weights_bytes);
  handle.set_tokenizer_bytes(out.model->tokenizer_bytes);
  handle.set_context_tokens(out.model->context_tokens);
  handle.set_prefix_ready(out.model->pool != nullptr && out.model->pool->ready());
  if (out.model->gpu != nullptr) TIE_CHECK_OK(lend(connection, attach.rank(), out));
  if (out.reply.has_error()) return out;
  const os::Fd& weights = attach.rank() == 0 ? out.model->weights : out.model->later_ranks[attach.rank() - 1];
  out.fds = {weights.get(), out.model->tokenizer.get()};
  return out;
}

// All ranks' weights at once, so that the looks at them run side by side. An error in the reply: not looked at yet.
Result<void> OwnerServer::lend(Connection& connection, uint32_t rank, Answer& out) {
  const LoadedModel& model = *out.model;
  if (connection.lent_model != out.model) {
    if (connection.lent) return fail(Code::kNotReady, "the model has changed: what was lent before ends first");
    connection.let_go();
    connection.lent_model = out.model;
  }
  while (connection.loans.size() <= model.later_gpus.size()) {
    const size_t next = connection.loans.size();
    auto loan = (next == 0 ? model.gpu : model.later_gpus[next - 1])->borrow();
    if (!loan) {
      connection.let_go();
      return std::unexpected(std::move(loan.error()));
    }
    connection.loans.push_back(std::move(*loan));
  }
  GpuLoan& loan = *connection.loans[rank];
  auto lent = loan.lent(Deadline::in_ms(kLookReplyMs));
  if (!lent && lent.error().code == Code::kCorrupt) {
    TIE_LOG("tie-model-owner", "the GPU weights of {} have changed: they are loaded anew", os::LogWord(model.name));
    store_.load_again(model.name);
    connection.let_go();
    return fail(Code::kNotReady, lent.error().message);
  }
  if (!lent) {
    connection.let_go();
    return std::unexpected(std::move(lent.error()));
  }
  const GpuWeights& weights = *loan.weights();
  if (!*lent) {
    out = Answer{};
    set_error(out.reply, {Code::kNotReady, "the weights in GPU memory are being looked at"});
    out.reply.mutable_look()->set_done_bytes(loan.looked_at_bytes());
    out.reply.mutable_look()->set_all_bytes(weights.bytes());
    return {};
  }
  connection.lent = true;
  out.reply.mutable_model()->set_gpu_handle(weights.handle().bytes, sizeof weights.handle().bytes);
  out.reply.mutable_model()->set_gpu_bytes(weights.bytes());
  out.reply.mutable_model()->set_gpu_number(weights.gpu());
  return {};
}

Result<OwnerServer::Answer> OwnerServer::prefix_request(const std::string& name, const v1::OwnerRequest& request) {
  Answer out;
  TIE_TRY(out.model, store_.find(name));
  if (out.model->pool == nullptr) return fail(Code::kFailedPrecondition, "this model has no prefix pool");
  prefix::PoolOwner& pool = *out.model->pool;
  if (request.has_prepare_prefix()) {
    const v1::PreparePrefixPool& prepare = request.prepare_prefix();
    for (const prefix::PromptEntry& prompt : pool.prompts()) {
      v1::SystemPrompt& p = *out.reply.add_prompts();
      p.set_prompt_id(prompt.id);
      p.mutable_token_ids()->Add(prompt.tokens.begin(), prompt.tokens.end());
    }
    if (prepare.block_count() == 0) return out;  // only the prompts were asked for
    TIE_TRY(crypto::Digest layout, crypto::digest_from(as_bytes(prepare.layout_id()), "layout id"));
    TIE_TRY(out.passed, pool.prepare(prepare.rank(), prepare.block_bytes(), prepare.block_count(), layout));
  } else if (request.has_seal_prefix()) {
    TIE_TRY(prefix::TrieMetadata metadata, prefix::from_proto(request.seal_prefix().trie()));
    TIE_CHECK_OK(pool.seal(request.seal_prefix().rank(), metadata));
  } else if (request.has_attach_prefix()) {
    TIE_TRY(prefix::PoolOwner::Attached attached, pool.attach(request.attach_prefix().rank()));
    prefix::to_proto(attached.metadata, *out.reply.mutable_trie());
    out.passed = std::move(attached.fd);
  } else {
    pool.reset();
  }
  if (out.passed) out.fds = {out.passed.get()};
  return out;
}

}  // namespace tie::owner
