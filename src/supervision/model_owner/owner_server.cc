#include "supervision/model_owner/owner_server.h"

#include <poll.h>
#include <sys/socket.h>

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

}  // namespace

struct OwnerServer::Connection {
  os::Fd socket;
  std::thread thread;
  std::atomic<bool> done{false};
  std::atomic<int64_t> idle_since_ms{0};  // 0 while a request is being served, or something is lent
  std::shared_ptr<const LoadedModel> lent_model;
  std::shared_ptr<void> loan;  // of that model's GPU weights; ends with the connection
};

// A reply and the descriptors that go with it; the model keeps them open until the reply is sent.
struct OwnerServer::Answer {
  v1::OwnerReply reply;
  std::vector<int> fds;
  std::shared_ptr<const LoadedModel> model;
  std::shared_ptr<void> loan;
  os::Fd passed;
};

OwnerServer::OwnerServer(ModelStore& store, OwnerServerOptions options) : store_(store), options_(std::move(options)) {}

OwnerServer::~OwnerServer() = default;

Result<void> OwnerServer::run(int listener, int stop_fd) {
  Result<void> outcome;
  for (;;) {
    pollfd polls[2] = {{listener, POLLIN, 0}, {stop_fd, POLLIN, 0}};
    int n = ::poll(polls, 2, 1000);
    if (n < 0 && errno != EINTR) {
      outcome = fail_errno("waiting for connections", errno);
      break;
    }
    reap();
    if (n <= 0) continue;
    if (polls[1].revents != 0) break;
    auto socket = os::accept_unix(listener, Deadline::in_ms(0));
    if (!socket) continue;  // the client has gone again, or descriptors ran out for a moment
    make_room();
    auto connection = std::make_unique<Connection>();
    connection->socket = std::move(*socket);
    connection->idle_since_ms = monotonic_ms();
    Connection& served = *connection;
    std::lock_guard lock(mutex_);
    connections_.push_back(std::move(connection));
    served.thread = std::thread([this, &served] { serve(served); });
  }
  store_.stop();
  for (auto& connection : connections_) ::shutdown(connection->socket.get(), SHUT_RDWR);
  for (auto& connection : connections_) connection->thread.join();
  connections_.clear();
  return outcome;
}

void OwnerServer::reap() {
  std::lock_guard lock(mutex_);
  connections_.remove_if([](std::unique_ptr<Connection>& connection) {
    if (!connection->done) return false;
    connection->thread.join();
    return true;
  });
}

void OwnerServer::make_room() {
  std::lock_guard lock(mutex_);
  size_t live = 0;
  Connection* oldest = nullptr;
  for (auto& connection : connections_) {
    if (connection->done) continue;
    ++live;
    int64_t since = connection->idle_since_ms;
    if (since != 0 && (oldest == nullptr || since < oldest->idle_since_ms)) oldest = connection.get();
  }
  if (live >= options_.max_connections && oldest != nullptr) ::shutdown(oldest->socket.get(), SHUT_RDWR);
}

void OwnerServer::serve(Connection& connection) {
  int socket = connection.socket.get();
  for (;;) {
    const bool lends = connection.loan != nullptr;
    if (!os::wait_readable(socket, Deadline::in_ms(lends ? kLoanLookMs : options_.idle_ms))) {
      if (lends) continue;
      break;
    }
    auto received =
        os::receive_message<v1::OwnerRequest>(socket, kMaxRequestBytes, Deadline::in_ms(options_.message_ms), 0);
    if (!received) break;
    connection.idle_since_ms = 0;
    Answer reply = answer(received->message);
    if (reply.loan) {
      connection.loan = std::move(reply.loan);
      connection.lent_model = reply.model;
    }
    bool sent = os::send_message(socket, reply.reply, Deadline::in_ms(options_.message_ms), reply.fds).has_value();
    if (!connection.loan) connection.idle_since_ms = monotonic_ms();
    if (!sent) break;
  }
  connection.loan.reset();
  connection.lent_model.reset();
  // Tells the peer now; the descriptor itself is closed when the thread has been joined.
  ::shutdown(socket, SHUT_RDWR);
  connection.done = true;
}

OwnerServer::Answer OwnerServer::answer(const v1::OwnerRequest& request) {
  auto answered = [&]() -> Result<Answer> {
    switch (request.kind_case()) {
      case v1::OwnerRequest::kStatus: {
        Answer out;
        fill_status(store_.rows(), out.reply);
        out.reply.set_instance_id(instance_id_);
        return out;
      }
      case v1::OwnerRequest::kAttach:
        return attach_model(request);
      case v1::OwnerRequest::KIND_NOT_SET:
        return fail(Code::kUnsupportedFeature, "this owner does not know that request");
      case v1::OwnerRequest::kReload: {
        (void)store_.refresh();
        Answer out;
        fill_status(store_.rows(), out.reply);
        out.reply.set_instance_id(instance_id_);
        return out;
      }
      default:
        return prefix_request(request);
    }
  }();
  if (answered) return std::move(*answered);
  Answer out;
  set_error(out.reply, answered.error());
  return out;
}

Result<OwnerServer::Answer> OwnerServer::attach_model(const v1::OwnerRequest& request) {
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
  handle.set_model(out.model->name);
  handle.set_model_id(out.model->model_id.data(), out.model->model_id.size());
  handle.set_release_id(options_.release_id.data(), options_.release_id.size());
  handle.set_weights_bytes(out.model->weights_bytes);
  handle.set_tokenizer_bytes(out.model->tokenizer_bytes);
  handle.set_context_tokens(out.model->context_tokens);
  handle.set_prefix_ready(out.model->pool != nullptr && out.model->pool->ready());
  if (GpuWeights* gpu = out.model->gpu.get()) {
    auto loan = gpu->lend();
    if (!loan && loan.error().code == Code::kCorrupt) {
      TIE_LOG("tie-model-owner", "the GPU weights of {} have changed: they are loaded anew",
              os::LogWord(out.model->name));
      store_.load_again(attach.model());
      return fail(Code::kNotReady, loan.error().message);
    }
    if (!loan) return std::unexpected(std::move(loan.error()));
    out.loan = std::move(*loan);
    handle.set_gpu_handle(gpu->handle().bytes, sizeof gpu->handle().bytes);
    handle.set_gpu_bytes(gpu->bytes());
  }
  const os::Fd& weights = attach.rank() == 0 ? out.model->weights : out.model->later_ranks[attach.rank() - 1];
  out.fds = {weights.get(), out.model->tokenizer.get()};
  return out;
}

Result<OwnerServer::Answer> OwnerServer::prefix_request(const v1::OwnerRequest& request) {
  const std::string& name = request.has_prepare_prefix()  ? request.prepare_prefix().model()
                            : request.has_seal_prefix()   ? request.seal_prefix().model()
                            : request.has_attach_prefix() ? request.attach_prefix().model()
                                                          : request.reset_prefix().model();
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
