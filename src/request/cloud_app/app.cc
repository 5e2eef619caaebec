#include "request/cloud_app/app.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "os/log.h"
#include "request/cloud_app/body_reader.h"
#include "request/cloud_app/constraints/constraints.h"
#include "request/cloud_app/delta_padding/delta_padding.h"
#include "request/cloud_app/limits.h"
#include "request/cloud_app/prompt_input.h"
#include "request/cloud_app/request_check.h"

namespace tie::request::app {
namespace {

using End = v1::FromApp::EndOfResponse;
constexpr std::string_view kPromptId = "prompt_id";  // what the runtime's words begin with when that is what it refuses
// The store connection may come with Parameters.
constexpr FrameLimits kHelperLimits{
    .max_frame_bytes = kMaxFrameBytes, .max_queued_bytes = kMaxQueuedBytes, .max_fds = 1};

End::Status end_status(Code code) {
  switch (code) {
    case Code::kInternal:
    case Code::kRuntimeLost:
    case Code::kNotReady:
    case Code::kOverloaded:
    case Code::kDeadline:
    case Code::kIo:
      return End::INTERNAL_ERROR;
    default:
      return End::INVALID_REQUEST;
  }
}

Refusal helper_gone() {
  return {Code::kCancelled, error_info(Code::kCancelled).sentence};
}

}  // namespace

App::App(os::Fd helper, ServedModels models, std::string assets)
    : helper_(std::move(helper), kHelperLimits), models_(std::move(models)), assets_(std::move(assets)) {}

Result<std::unique_ptr<App>> App::warm_up(os::Fd helper, const Config& config) {
  TIE_TRY(ServedModels models, ServedModels::load(config.assets));
  std::unique_ptr<App> app(new App(std::move(helper), std::move(models), config.assets));
  TIE_TRY(v1::ToApp first, app->next_message(-1));
  if (!first.has_warmup()) return fail(Code::kFailedPrecondition, "the helper's first word is not Warmup");
  for (const auto& [name, model] : app->models_.all()) {
    auto runtime = RuntimeStream::connect(config.runtime_dir + "/" + name + "/runtime.sock");
    if (!runtime) continue;
    app->runtimes_.emplace(name, std::move(*runtime));
    if (config.kvxfer_dir.empty()) continue;
    if (auto link = KvLink::connect(config.kvxfer_dir + "/" + name + "/kvxfer.sock"))
      app->kv_links_.emplace(name, std::move(*link));
  }
  if (app->runtimes_.empty()) return fail(Code::kNotReady, "no runtime can be reached");
  return app;
}

Result<void> App::serve() {
  v1::FromApp ready;
  ready.mutable_ready();
  send(ready);
  TIE_TRY(Wait woken, wait_idle());
  if (woken == Wait::kRuntimeGone) return fail(Code::kRuntimeLost, "the runtime went away while this process waited");
  auto request = read_request();
  Checked<void> done = request ? run(*request) : Checked<void>(std::unexpected(std::move(request.error())));
  if (helper_gone_) return {};
  if (!done) {
    // A request that failed before there was an Answer has one error event all the same.
    v1::InferenceEvent event;
    event.mutable_error()->set_code(static_cast<v1::ErrorCode>(done.error().code));
    event.mutable_error()->set_message(done.error().message);
    event.mutable_error()->set_param(done.error().param);
    v1::ResponseMessage message;
    *message.mutable_event() = std::move(event);
    send_event(pad_message(message.SerializeAsString()));
  }
  if (done && key_asked_) (void)listen_to_helper();
  end(done ? End::OK : end_status(done.error().code));
  let_answer_pass();
  if (done) finish_cache();
  return {};
}

// Warm and without a request: ends when the helper speaks or goes, or when a runtime goes, because its connection
// cannot be made anew.
Result<App::Wait> App::wait_idle() {
  std::vector<pollfd> fds{{helper_.fd(), POLLIN, 0}};
  for (const auto& [name, runtime] : runtimes_) fds.push_back({runtime->fd(), POLLIN, 0});
  for (;;) {
    if (::poll(fds.data(), fds.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return fail_errno("poll", errno);
    }
    if (fds[0].revents != 0) return Wait::kHelper;
    size_t at = 1;
    for (const auto& [name, runtime] : runtimes_)
      if (fds[at++].revents != 0 && !runtime->keep_alive()) return Wait::kRuntimeGone;
  }
}

Result<v1::ToApp> App::next_message(int64_t timeout_ms) {
  Deadline deadline = Deadline::in_ms(timeout_ms < 0 ? INT32_MAX : timeout_ms);
  for (;;) {
    TIE_TRY(auto frame, helper_.next());
    if (frame) {
      v1::ToApp message;
      TIE_CHECK_OK(parse_message(*frame, message));
      if (message.has_parameters() && !frame->fds.empty()) store_ = std::move(frame->fds.front());
      return message;
    }
    TIE_CHECK_OK(os::wait_readable(helper_.fd(), deadline));
  }
}

Checked<v1::InferenceRequest> App::read_request() {
  BodyReader body;
  bool parameters_seen = false;
  for (;;) {
    auto message = next_message(kInputIdleMs);
    if (!message || message->has_teardown()) {
      helper_gone_ = true;
      return std::unexpected(helper_gone());
    }
    if (message->has_parameters() && !std::exchange(parameters_seen, true)) {
      request_id_ = message->parameters().request_id();
      continue;
    }
    if (!message->has_input() || !parameters_seen)
      return refuse(Code::kInternal, "Messages came in the wrong order inside the node.");
    auto fed = body.feed(as_bytes(message->input().data()));
    secure_zero(*message->mutable_input()->mutable_data());
    if (!fed) return std::unexpected(std::move(fed.error()));
    if (message->input().final()) return body.finish();
  }
}

Checked<void> App::run(v1::InferenceRequest& request) {
  const ServedModel* model = models_.find(request.model());
  if (model == nullptr)
    return refuse(Code::kModelNotFound, "This node does not serve the model of that name.", "model");
  TIE_CHECK_OK(check_request(request, *model));
  std::optional<prefix::SystemPrompt> system;
  if (!request.prompt_id().empty()) {
    TIE_TRY(system, named_prompt(assets_, request.prompt_id(), model->name));
    TIE_CHECK_OK(add_system_message(*system, request));
  }
  TIE_TRY(Constraint constraint, lower_constraint(request, model->tool_syntax));
  TIE_CHECK_OK(check_constraint(request, constraint));
  TIE_TRY(PromptTokens prompt, prompt_tokens(request, *model, system ? &*system : nullptr));
  TIE_TRY(v1::SamplingParams sampling,
          settle_sampling(request.sampling(), *model, prompt.ids.size(), prompt_param(request)));
  Answer answer(*model, sampling, [this](const Bytes& padded) { send_event(padded); });
  if (constraint.calls != CallsWanted::kNone) answer.split_calls(request, constraint.calls);
  if (request.sampling().echo()) answer.echo(prompt.echo);
  if (sampling.echo()) answer.echo_logprobs(prompt.ids, prompt.begins_added);
  if (sampling.max_tokens() == 0 && !(sampling.echo() && prompt.ids.size() > 1)) {
    answer.finish_empty(static_cast<uint32_t>(prompt.ids.size()));
    return {};
  }
  auto runtime = runtimes_.find(model->name);
  if (runtime == runtimes_.end())
    return refuse(Code::kNotReady, "That model is not ready; try again shortly.", "model");
  int64_t deadline_ms =
      request.deadline_ms() == 0 ? kRequestDeadlineMs : std::min<int64_t>(request.deadline_ms(), kRequestDeadlineMs);
  auto handles = begin_cache(request, prompt.ids, prompt.ids.size() + static_cast<uint64_t>(sampling.max_tokens()));
  runtime->second->start({.model = model->name,
                          .request_id = request_id_,
                          .prompt = prompt.ids,
                          .sampling = &sampling,
                          .grammar = constraint.grammar,
                          .prompt_id = system && is_beginning_of(*system, prompt.ids) ? system->id : std::string_view(),
                          .kv_import = handles.kv_import,
                          .kv_export = handles.kv_export,
                          .deadline_ms = deadline_ms});
  if (cache_ && cache_->wants_ephemeral_key()) {
    v1::FromApp message;
    message.mutable_derive_key()->set_purpose("kv-cache");
    send(message);
    key_asked_ = true;
  }
  auto done = generate(*runtime->second, answer, deadline_ms);
  if (!done && done.error().param.empty() && done.error().message.starts_with("grammar"))
    done.error().param = constraint.param;
  if (!done && system && done.error().message.starts_with(kPromptId)) return std::unexpected(not_served(*system));
  return done;
}

Checked<void> App::generate(RuntimeStream& runtime, Answer& answer, int64_t deadline_ms) {
  int64_t begin_ms = monotonic_ms(), last_ms = begin_ms, listened_ms = begin_ms;
  int64_t allowed_ms = kFirstEventTimeoutMs;
  for (;;) {
    RuntimeEvent event;
    auto got = runtime.next(kTickMs, event);
    if (!got) return std::unexpected(std::move(got.error()));
    int64_t now_ms = monotonic_ms();
    if (*got == RuntimeStream::Got::kEvent) {
      last_ms = now_ms;
      allowed_ms = kEventTimeoutMs;
      TIE_CHECK_OK(answer.add(event));
      note(event);
      if (event.final) {
        if (answer.complete()) return {};
        return refuse(Code::kInternal, "The runtime ended before the answer was complete.");
      }
    }
    if (now_ms - listened_ms >= kTickMs) {
      listened_ms = now_ms;
      if (auto heard = listen_to_helper(); !heard) {
        runtime.cancel();
        return heard;
      }
    }
    if (now_ms - begin_ms > deadline_ms) return refuse(Code::kDeadline, error_info(Code::kDeadline).sentence);
    if (now_ms - last_ms > allowed_ms) return refuse(Code::kRuntimeLost, error_info(Code::kRuntimeLost).sentence);
  }
}

// Between events: has the client gone? And what it did not take yet goes out.
Checked<void> App::listen_to_helper() {
  if (!helper_.flush()) helper_gone_ = true;
  while (!helper_gone_) {
    auto frame = helper_.next();
    if (!frame) helper_gone_ = true;
    if (!frame || !*frame) break;
    // Else a Teardown; nothing else may come now, and nothing else would be believed.
    if (!take_derived_key(**frame)) helper_gone_ = true;
  }
  if (helper_gone_) return std::unexpected(helper_gone());
  return {};
}

// The keys leave the request here: nothing else in this process needs them.
ConversationCache::Handles App::begin_cache(v1::InferenceRequest& request, std::span<const int32_t> prompt,
                                            uint64_t most_tokens) {
  TurnKeys keys;
  keys.read = SecretBytes::copy_of(as_bytes(request.turn_key_read()));
  keys.write = SecretBytes::copy_of(as_bytes(request.turn_key_write()));
  keys.awaited_tokens = request.turn_key_read_tokens();
  keys.ephemeral = keys.read.empty() && keys.write.empty();
  secure_zero(*request.mutable_turn_key_read());
  secure_zero(*request.mutable_turn_key_write());
  auto link = kv_links_.find(request.model());
  if (link == kv_links_.end() || !store_) return {};
  tokens_.reserve(most_tokens);  // growing would leave copies behind
  tokens_.assign(prompt.begin(), prompt.end());
  cache_ = std::make_unique<ConversationCache>(std::move(link->second), std::move(store_), std::move(keys));
  return cache_->begin(prompt, most_tokens);
}

void App::note(const RuntimeEvent& event) {
  if (!cache_) return;
  cache_->imported();
  if (event.sample == 0) tokens_.insert(tokens_.end(), event.tokens.begin(), event.tokens.end());
  if (event.has_usage) exported_tokens_ = event.usage.exported_tokens();
}

bool App::take_derived_key(os::Frame& frame) {
  v1::ToApp message;
  if (!key_asked_ || !parse_message(frame, message) || !message.has_derived_key()) return false;
  key_asked_ = false;
  std::string& key = *message.mutable_derived_key()->mutable_key();
  cache_->set_ephemeral_key(SecretBytes::copy_of(as_bytes(key)));
  secure_zero(key);
  return true;
}

// The rest of the answer's way is the helper's, which ends when it has passed the last chunk on. What this process has
// left to do, its end included, would take the processor from the processes that the user waits for.
void App::let_answer_pass() {
  pollfd helper{helper_.fd(), 0, 0};  // wakes by its hang-up alone
  if (!helper_gone_) (void)::poll(&helper, 1, static_cast<int>(kLastWriteMs));
}

void App::finish_cache() {
  if (cache_) cache_->finish(tokens_, exported_tokens_);
  cache_.reset();
  secure_zero(tokens_.data(), tokens_.size() * sizeof(int32_t));
}

void App::send_event(const Bytes& padded) {
  v1::FromApp message;
  message.mutable_response()->set_message(padded.data(), padded.size());
  send(message);
}

// While the helper takes nothing, the runtime is not read either.
void App::send(const v1::FromApp& message) {
  if (helper_gone_) return;
  Deadline deadline = Deadline::in_ms(kSendTimeoutMs);
  helper_gone_ = !send_message(helper_, message);
  while (!helper_gone_ && helper_.queued_bytes() > kPauseQueuedBytes)
    helper_gone_ = !os::wait_writable(helper_.fd(), deadline) || !helper_.flush();
}

void App::end(End::Status status) {
  v1::FromApp message;
  message.mutable_end()->set_status(status);
  send(message);
  Deadline deadline = Deadline::in_ms(kLastWriteMs);
  while (!helper_gone_ && helper_.wants_write())
    helper_gone_ = !os::wait_writable(helper_.fd(), deadline) || !helper_.flush();
}

}  // namespace tie::request::app
