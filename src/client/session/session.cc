#include "client/session/session.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "client/session/attempt.h"
#include "client/session/limits.h"
#include "client/session/request_body.h"

namespace tie::client {

bool is_credential(std::string_view text) {
  bool fits = !text.empty() && text.size() <= kMaxCredentialBytes && text.front() != ' ' && text.back() != ' ';
  return fits && std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

Session::Session(SessionOptions options, std::unique_ptr<NodeVerifier> verifier)
    : options_(std::move(options)),
      verifier_(std::move(verifier)),
      link_(std::make_unique<NodeLink>(options_.node, options_.credential)) {}

Session::~Session() = default;

std::shared_ptr<Session> Session::open_with(SessionOptions options, std::unique_ptr<NodeVerifier> verifier) {
  return std::shared_ptr<Session>(new Session(std::move(options), std::move(verifier)));
}

Result<std::shared_ptr<Session>> Session::open(SessionOptions options) {
  if (!options.credential.empty() && !is_credential(options.credential))
    return fail(Code::kBadRequest, "a credential is 1 to 1024 printable ASCII characters without spaces at its ends");
  TIE_TRY(std::string path, find_policy(options.policy_path));
  TIE_TRY(auto verifier, policy_verifier(path));
  options.policy_path = path;
  return open_with(std::move(options), std::move(verifier));
}

std::shared_ptr<const VerifiedNode> Session::last_node() const {
  std::lock_guard lock(mutex_);
  return node_;
}

Result<std::shared_ptr<const VerifiedNode>> Session::node(int64_t max_age_ms) {
  int64_t asked_at_ms = monotonic_ms();
  auto fresh_enough = [&]() -> std::shared_ptr<const VerifiedNode> {
    std::lock_guard lock(mutex_);
    bool young = node_ && fetched_at_ms_ >= asked_at_ms - max_age_ms;
    bool lasts = young && int64_t(node_->expires_unix_ms) - wall_clock_ms() > kAttestationMarginMs;
    return lasts ? node_ : nullptr;
  };
  if (auto known = fresh_enough()) return known;
  std::lock_guard one_at_a_time(fetch_mutex_);
  if (auto known = fresh_enough()) return known;  // another thread fetched meanwhile
  return fetch();
}

Result<std::shared_ptr<const VerifiedNode>> Session::fetch() {
  Bytes challenge(kChallengeBytes);
  random_bytes(challenge);
  TIE_TRY(v1::AttestationBundle bundle, link_->fetch_attestation(challenge, options_.fetch_timeout_ms));
  TIE_TRY(VerifiedNode verified, verifier_->verify(bundle, challenge));
  auto node = std::make_shared<const VerifiedNode>(std::move(verified));
  std::lock_guard lock(mutex_);
  node_ = node;
  fetched_at_ms_ = monotonic_ms();
  return node;
}

Result<std::shared_ptr<const VerifiedNode>> Session::node_with_key(int64_t limit_ms,
                                                                   const std::function<void()>& waiting) {
  bool told = false;
  for (Deadline limit = Deadline::in_ms(limit_ms);;) {
    auto found = node();
    if (found || found.error().code != Code::kKeyUnknownOrExpired || limit.passed()) return found;
    if (!std::exchange(told, true)) waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(kRekeyPollMs));
  }
}

Result<Inspection> Session::inspect() {
  Bytes challenge(kChallengeBytes);
  random_bytes(challenge);
  TIE_TRY(v1::AttestationBundle bundle, link_->fetch_attestation(challenge, options_.fetch_timeout_ms));
  return verifier_->inspect(bundle, challenge);
}

std::unique_ptr<Answer> Session::ask(const v1::InferenceRequest& request, std::shared_ptr<Cancellation> cancel) {
  auto body = request_body(request);
  auto answer = std::make_unique<Answer>(shared_from_this(), body ? std::move(*body) : Bytes{}, std::move(cancel));
  if (!body) answer->body_error_ = body.error();
  return answer;
}

Answer::Answer(std::shared_ptr<Session> session, Bytes body, std::shared_ptr<Cancellation> cancel)
    : session_(std::move(session)),
      body_(std::move(body)),
      cancel_(std::move(cancel)),
      deadline_(Deadline::in_ms(session_->options().answer_timeout_ms)) {}

Answer::~Answer() {
  secure_zero(body_);
}

Result<void> Answer::start_attempt() {
  ++attempts_;
  if (cancel_->cancelled()) return fail(Code::kCancelled, "cancelled");
  TIE_TRY(node_, session_->node());
  if (node_->token_required) return start_attempt_with_token();
  TIE_TRY(attempt_,
          Attempt::start(*session_->link_, *node_, body_, deadline_, *cancel_, session_->options().dek_witness));
  return {};
}

// The token goes first in the sealed stream, so that the node can refuse before it looks at anything else.
Result<void> Answer::start_attempt_with_token() {
  const auto& source = session_->options().tokens;
  if (!source)
    return fail(Code::kUnauthenticated,
                "this node asks for one-time tokens; name their issuer with --token-issuer and your key for it with "
                "--token-key-file");
  TIE_TRY(Bytes token, source->take(node_->token_challenge));
  Bytes body = token_message(token);
  append(body, body_);
  token_sent_ = true;
  auto started = Attempt::start(*session_->link_, *node_, body, deadline_, *cancel_, session_->options().dek_witness);
  secure_zero(body);
  TIE_TRY(attempt_, std::move(started));
  return {};
}

// An error event is the node's own word and ends the answer; the summary says how the stream ended.
Result<bool> Answer::next_of_attempt(v1::InferenceEvent& event) {
  if (!attempt_) TIE_CHECK_OK(start_attempt());
  v1::ResponseMessage message;
  TIE_CHECK_OK(attempt_->next(message));
  if (message.has_event()) {
    event.Swap(message.mutable_event());
    if (!event.has_error()) return true;
    attempt_->discard_rest();
    error_param_ = event.error().param();
    auto code = static_cast<Code>(event.error().code());
    return fail(code == Code::kOk ? Code::kInternal : code,
                event.error().message().empty() ? error_info(code).sentence : event.error().message());
  }
  switch (message.final().status()) {
    case v1::FinalSummary::OK:
      return false;
    case v1::FinalSummary::UNAUTHENTICATED:
      return fail(Code::kUnauthenticated, error_info(Code::kUnauthenticated).sentence);
    case v1::FinalSummary::INVALID_REQUEST:
      return fail(Code::kBadRequest, error_info(Code::kBadRequest).sentence);
    default:
      return fail(Code::kInternal, error_info(Code::kInternal).sentence);
  }
}

// Fetches the bundle until `wanted` takes it or kRekeyWaitMs are over; asks once at least.
bool Answer::bundle_came(const std::function<bool(const VerifiedNode&)>& wanted) {
  for (Deadline limit = Deadline::in_ms(std::min(kRekeyWaitMs, deadline_.remaining_ms()));;) {
    auto node = session_->node(0);
    if (node && wanted(**node)) return true;
    if (limit.passed() || cancel_->sleep_ms(kRekeyPollMs)) return false;
    if (!node) session_->link_->reconnect_now();
  }
}

// A node whose key service has just died says the same as to a request that is not to be opened, since it tells nothing
// apart there. It then publishes another key within moments. Where none comes, the key service may have been too slow
// only: one more attempt is worth it.
bool Answer::another_chance() {
  if (std::exchange(rekeyed_, true) || !node_) return false;
  const Bytes refused = node_->key.key_id;
  bundle_came([&](const VerifiedNode& node) { return node.key.key_id != refused; });
  return true;
}

bool Answer::should_retry(const Error& error) {
  if (began_ || cancel_->cancelled()) return false;
  if (error.code ==
      Code::kKeyUnknownOrExpired) {  // once, and also when earlier attempts have met a node that was just starting
    // A node that has just started again may have no bundle yet; while it publishes one it knows that bundle's key.
    return !std::exchange(refetched_, true) && bundle_came([](const VerifiedNode&) { return true; });
  }
  if (error.code == Code::kUnauthenticated && token_sent_) {  // the node may have started anew: then it wants others
    if (std::exchange(token_retried_, true)) return false;
    return session_->node(0).has_value();
  }
  if (error.code == Code::kUnauthenticated) return another_chance();
  if (attempts_ >= session_->options().max_attempts) return false;
  if (!error_info(error.code).retryable) return false;
  int64_t wait_ms = session_->options().first_backoff_ms << std::min(attempts_ - 1, 6);
  wait_ms = wait_ms / 2 +
            int64_t(random_u64() % uint64_t(wait_ms));  // jitter: overloaded clients must not come back together
  if (wait_ms >= deadline_.remaining_ms()) return false;
  if (cancel_->sleep_ms(wait_ms)) return false;
  session_->link_->reconnect_now();
  return true;
}

Error Answer::describe(Error error) {
  if (cancel_->cancelled()) return {Code::kCancelled, error_info(Code::kCancelled).sentence};
  if (cut_) error.message = "the answer was cut and is not complete: " + error.message;
  return error;
}

Result<bool> Answer::next(v1::InferenceEvent& event) {
  if (ended_) return fail(Code::kFailedPrecondition, "the answer has ended");
  if (body_error_.code != Code::kOk) {
    ended_ = true;
    return std::unexpected(body_error_);
  }
  for (;;) {
    auto got = next_of_attempt(event);
    if (got) {
      began_ = true;
      ended_ = !*got;  // the attempt stays until this object dies: closing it may wait for the node's trailers
      return got;
    }
    attempt_.reset();
    if (should_retry(got.error())) continue;
    ended_ = true;
    cut_ = began_;
    return std::unexpected(describe(got.error()));
  }
}

}  // namespace tie::client
