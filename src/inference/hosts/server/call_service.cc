#include "inference/hosts/server/call_service.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "base/clock.h"
#include "inference/hosts/server/limits.h"
#include "inference/hosts/server/message_bytes.h"

namespace tie::runtime_host {

struct CallService::Call {
  explicit Call(const std::string& model) : io(&context), writer(model) {}
  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter io;
  grpc::ByteBuffer incoming;
  Tag accept{this, Op::kAccept}, done{this, Op::kDone}, read{this, Op::kRead}, write{this, Op::kWrite},
      finish{this, Op::kFinish};
  uint32_t operations = 0;  // tags that are still to come
  bool reading = false, writing = false, reads_ended = false, finishing = false, gone = false;
  bool unary = false;
  std::vector<std::shared_ptr<RequestOutput>> requests;
  size_t next_request = 0;  // whose turn it is to be written
  struct Refusal {
    std::string id;
    Error error;
  };
  std::deque<Refusal> refusals;
  ResponseWriter writer;
};

namespace {

grpc::Status as_status(const Error& error) {
  return {static_cast<grpc::StatusCode>(error_info(error.code).grpc_status), error_text(error)};
}

const Error kDraining{Code::kNotReady, "the runtime is draining and takes no new requests"};

const std::string kStreamMethod = "/inference.GRPCInferenceService/ModelStreamInfer";

}  // namespace

CallService::CallService(std::string model, grpc::AsyncGenericService& service, const UnaryCalls& unary,
                         std::unique_ptr<grpc::ServerCompletionQueue> queue)
    : model_(std::move(model)), service_(service), unary_(unary), queue_(std::move(queue)) {}

CallService::~CallService() {
  if (thread_.joinable()) stop();
}

void CallService::start() {
  accept_next();
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "streams");
}

void CallService::set_engine(engine::Engine* engine) {
  engine_ = engine;
}

void CallService::stop() {
  stopping_ = true;
  queue_->Shutdown();
  thread_.join();
}

void CallService::wake() {
  if (!has_ready_.load(std::memory_order_acquire) || alarm_set_.exchange(true)) return;
  alarm_.Set(queue_.get(), gpr_time_0(GPR_CLOCK_MONOTONIC), nullptr);
}

// On the engine's thread, as are all announcements.
void CallService::step_done() {
  if (!held_.empty()) {
    std::lock_guard lock(ready_mutex_);
    int64_t now_us = monotonic_us();
    std::erase_if(held_, [&](std::shared_ptr<RequestOutput>& output) {
      if (!output->due(now_us)) return false;
      ready_.push_back(std::move(output));
      return true;
    });
    if (!ready_.empty()) has_ready_.store(true, std::memory_order_release);
  }
  wake();
}

void CallService::drain() {
  draining_ = true;
  has_ready_ = true;
  wake();
}

void CallService::run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) {
    if (tag == nullptr)
      on_alarm();
    else
      handle(*static_cast<Tag*>(tag), ok);
  }
}

void CallService::on_alarm() {
  alarm_set_ = false;
  {
    std::lock_guard lock(ready_mutex_);
    has_ready_ = false;
    taken_.swap(ready_);
  }
  for (auto& output : taken_) {
    output->seen();
    if (output->call) pump(*static_cast<Call*>(output->call));
  }
  taken_.clear();
  if (!draining_) return;
  auto calls = calls_;  // pump may end calls, never releases them
  for (auto* call : calls) pump(*call);
}

void CallService::accept_next() {
  auto* call = new Call(model_);
  call->operations = 1;
  call->context.AsyncNotifyWhenDone(&call->done);
  service_.RequestCall(&call->context, &call->io, queue_.get(), queue_.get(), &call->accept);
}

void CallService::handle(Tag& tag, bool ok) {
  Call& call = *tag.call;
  --call.operations;
  switch (tag.op) {
    case Op::kAccept:
      on_accept(call, ok);
      return;
    case Op::kDone:
      call.gone = true;
      drop_requests(call);
      break;
    case Op::kRead:
      call.reading = false;
      on_read(call, ok);
      break;
    case Op::kWrite:
      call.writing = false;
      if (!ok) call.gone = true;
      if (call.gone) drop_requests(call);
      read_next(call);
      pump(call);
      break;
    case Op::kFinish:
      call.gone = true;
      break;
  }
  if (call.operations == 0) release(call);
}

void CallService::on_accept(Call& call, bool ok) {
  if (!ok) {  // the server is shutting down; there is no call, and its done tag never comes
    delete &call;
    return;
  }
  if (!stopping_) accept_next();
  call.operations = 1;  // done
  calls_.push_back(&call);
  ++open_calls_;
  call.unary = call.context.method() != kStreamMethod;
  if (calls_.size() > kMaxCalls) {
    finish(call, as_status({Code::kOverloaded, "too many calls are open"}));
  } else if (!call.unary && (draining_ || !engine_.load())) {
    finish(call, as_status(draining_ ? kDraining : Error{Code::kNotReady, not_ready_.load()}));
  } else {
    read_next(call);
  }
}

void CallService::read_next(Call& call) {
  if (call.reading || call.reads_ended || call.gone || call.finishing || call.refusals.size() >= kMaxUnsentErrors)
    return;
  call.reading = true;
  ++call.operations;
  call.io.Read(&call.incoming, &call.read);
}

// Its status and reply end the call, also when no message came.
void CallService::answer_unary(Call& call, bool has_message) {
  auto answer = unary_.answer(call.context.method(), call.incoming);
  if (!has_message && answer.status.ok())
    answer.status = {grpc::StatusCode::INVALID_ARGUMENT, "BAD_REQUEST: the call has no message"};
  if (!answer.status.ok()) return finish(call, answer.status);
  call.finishing = true;
  ++call.operations;
  call.io.WriteAndFinish(answer.reply, grpc::WriteOptions(), grpc::Status::OK, &call.finish);
}

void CallService::on_read(Call& call, bool ok) {
  if (call.unary) return answer_unary(call, ok);
  if (!ok) {
    call.reads_ended = true;  // the client has said all it wants to say, or is gone: then the done tag tells
    pump(call);
    return;
  }
  std::string id;
  if (auto taken = take_request(call, id); !taken) {
    call.refusals.push_back({std::move(id), std::move(taken.error())});
    pump(call);
  }
  read_next(call);
}

Result<void> CallService::take_request(Call& call, std::string& id) {
  if (!parse_and_wipe(call.incoming, request_))
    return fail(Code::kBadRequest, "the message is not a ModelInferRequest");
  id = request_.id().substr(0, kMaxIdBytes);
  auto parsed = parse_request(request_, model_);
  wipe(request_);
  request_.Clear();
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  auto* engine = engine_.load();
  if (draining_ || !engine) return std::unexpected(kDraining);
  TIE_CHECK_OK(prompts_.check(parsed->prompt_id, parsed->spec.prompt));
  if (call.requests.size() >= kMaxRequestsPerStream)
    return fail(Code::kOverloaded, "too many requests are in flight on this stream");
  auto output = std::make_shared<RequestOutput>(
      id, parsed->outputs, parsed->spec.sampling.logprobs, parsed->spec.sampling.n,
      [this](std::shared_ptr<RequestOutput> output) { held_.push_back(std::move(output)); });
  output->call = &call;
  parsed->spec.sink = output;
  TIE_CHECK_OK(name_buffers(*parsed));
  TIE_TRY(output->handle, engine->submit(std::move(parsed->spec)));
  call.requests.push_back(std::move(output));
  return {};
}

// An import that nobody holds is no error: the prompt is computed then.
Result<void> CallService::name_buffers(ParsedRequest& request) {
  if (request.kv_import.empty() && request.kv_export.empty()) return {};
  auto* kvxfer = kvxfer_.load();
  if (!kvxfer) return fail(Code::kUnsupportedFeature, "this runtime has no KV transfer");
  if (!request.kv_import.empty()) {
    request.spec.kv_import = kvxfer->take_import(request.kv_import);
    request.spec.import_refused = !request.spec.kv_import;
  }
  if (!request.kv_export.empty()) request.spec.kv_export = kvxfer->take_export(request.kv_export);
  return {};
}

void CallService::pump(Call& call) {
  if (call.writing || call.finishing || call.gone) return;
  grpc::ByteBuffer message;
  if (!call.refusals.empty()) {
    message = call.writer.write_error(call.refusals.front().id, call.refusals.front().error, nullptr);
    call.refusals.pop_front();
  } else {
    int64_t now_us = monotonic_us();
    for (size_t tried = 0; tried < call.requests.size() && message.Length() == 0; ++tried) {
      size_t at = call.next_request++ % call.requests.size();
      auto& output = call.requests[at];
      auto next = output->due(now_us) ? output->take(response_interval_us(open_calls())) : std::nullopt;
      if (!next) continue;
      message = next->error ? call.writer.write_error(output->id, *next->error, &next->parts)
                            : call.writer.write(output->id, next->parts, output->outputs, output->with_logprobs);
      wipe(next->parts);
      if (!next->parts.final) continue;
      output->call = nullptr;
      call.requests.erase(call.requests.begin() + static_cast<ptrdiff_t>(at));
    }
  }
  if (message.Length() > 0) {
    call.writing = true;
    ++call.operations;
    call.io.Write(message, &call.write);
  } else if (call.requests.empty() && draining_ && !call.unary) {
    finish(call, as_status(kDraining));
  } else if (call.requests.empty() && call.reads_ended && !call.unary) {
    finish(call, grpc::Status::OK);
  }
}

void CallService::finish(Call& call, const grpc::Status& status) {
  call.finishing = true;
  ++call.operations;
  call.io.Finish(status, &call.finish);
}

void CallService::drop_requests(Call& call) {
  auto* engine = engine_.load();
  for (auto& output : call.requests) {
    output->call = nullptr;
    if (engine) engine->cancel(*output->handle);
  }
  call.requests.clear();
}

void CallService::release(Call& call) {
  calls_.erase(std::find(calls_.begin(), calls_.end(), &call));
  --open_calls_;
  delete &call;
}

}  // namespace tie::runtime_host
