// A client's relation to one node: connect, fetch the attestation bundle, judge it by the policy, seal requests to it,
// open answers. Used by the terminal commands and the local proxy. Threads: Session is shared by all; an Answer belongs
// to one thread (cancel it through its Cancellation). Secrets: each attempt draws its own key, which dies with the
// attempt. Nothing is written to disk. Retries follow one rule: unknown or expired key: fetch the bundle again, once;
// not authenticated: once, after a wait for the other key that a node whose keys died publishes within moments; a
// refused one-time token: once, with another token;
// overload or not ready: back off; always a fresh key, never after the first event; gRPC's own retries are off. Source:
// ARCHITECTURE.md, "Request encryption".
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "client/session/cancellation.h"
#include "client/session/node_verifier.h"
#include "client/session/token_source.h"

namespace tie::v1 {
class InferenceRequest;
class InferenceEvent;
}  // namespace tie::v1

namespace tie::client {

class NodeLink;
class Attempt;

// What may be a credential: 1 to 1024 printable ASCII characters without spaces at its ends. gRPC ends the process over
// other metadata.
bool is_credential(std::string_view text);

struct SessionOptions {
  std::string node = "127.0.0.1:8443";
  std::string policy_path;  // empty: the usual places (find_policy)
  int64_t fetch_timeout_ms = 10'000;
  int64_t answer_timeout_ms = 15 * 60 * 1000;  // of a whole answer, retries included
  int64_t bundle_max_age_ms = 5 * 60 * 1000;   // then it is fetched and judged again
  int max_attempts = 5;
  // Hears the key of every attempt. For one caller alone: `tie node prove-stateless` looks for it on the node
  // afterwards.
  std::function<void(ByteView dek)> dek_witness;
  // Sent with every request as the gRPC metadata `authorization`, in clear on the way to the node; empty: none. The
  // node can tell that requests with the same one come from the same holder. is_credential() says what it may be.
  std::string credential;
  std::shared_ptr<TokenSource> tokens;  // for nodes that ask for one-time tokens
  int64_t first_backoff_ms = 100;       // doubles, with jitter: at most 1.5 s in all with five attempts
};

class Answer;

class Session : public std::enable_shared_from_this<Session> {
 public:
  // Reads the policy; talks to nobody yet.
  static Result<std::shared_ptr<Session>> open(SessionOptions options);
  static std::shared_ptr<Session> open_with(SessionOptions options, std::unique_ptr<NodeVerifier> verifier);
  ~Session();

  // The node as last verified, at most max_age_ms ago (else it is fetched and judged now). Errors: kNotReady when it
  // cannot be reached, kPermissionDenied when the policy refuses it.
  Result<std::shared_ptr<const VerifiedNode>> node(int64_t max_age_ms);
  Result<std::shared_ptr<const VerifiedNode>> node() { return node(options_.bundle_max_age_ms); }
  // As node(); but while the node is between two keys (one was destroyed, the next is being made) it is waited for, up
  // to limit_ms. `waiting` is called once then. kKeyUnknownOrExpired: none came.
  Result<std::shared_ptr<const VerifiedNode>> node_with_key(int64_t limit_ms, const std::function<void()>& waiting);
  // What was last verified, without talking to anyone; null before the first success.
  std::shared_ptr<const VerifiedNode> last_node() const;
  // What the node says of itself and how the policy judges it, line by line: fetches now.
  Result<Inspection> inspect();

  // Starts nothing yet: the first Answer::next() does. `cancel` must outlive the answer.
  std::unique_ptr<Answer> ask(const v1::InferenceRequest& request, std::shared_ptr<Cancellation> cancel);

  const SessionOptions& options() const { return options_; }

 private:
  friend class Answer;
  Session(SessionOptions options, std::unique_ptr<NodeVerifier> verifier);
  Result<std::shared_ptr<const VerifiedNode>> fetch();

  SessionOptions options_;
  std::unique_ptr<NodeVerifier> verifier_;
  std::unique_ptr<NodeLink> link_;
  mutable std::mutex mutex_;  // node_, fetched_at_ms_
  std::mutex fetch_mutex_;    // one fetch at a time; the others use its result
  std::shared_ptr<const VerifiedNode> node_;
  int64_t fetched_at_ms_ = 0;
};

// One answer as a stream of events, pulled by the caller.
class Answer {
 public:
  Answer(std::shared_ptr<Session> session, Bytes body, std::shared_ptr<Cancellation> cancel);
  ~Answer();

  // Waits for the next event. true: `event` was filled. false: the authenticated end; the answer is complete. An error
  // ends the answer: was_cut() tells whether events had come before and the authenticated end had not. After an error
  // or the end: kFailedPrecondition.
  Result<bool> next(v1::InferenceEvent& event);

  bool was_cut() const { return cut_; }
  // The request parameter at fault, in OpenAI's name, when the node named one.
  const std::string& error_param() const { return error_param_; }
  int attempts() const { return attempts_; }
  const std::shared_ptr<const VerifiedNode>& node() const { return node_; }

 private:
  Result<bool> next_of_attempt(v1::InferenceEvent& event);
  Result<void> start_attempt();
  Result<void> start_attempt_with_token();
  bool should_retry(const Error& error);
  bool bundle_came(const std::function<bool(const VerifiedNode&)>& wanted);
  bool another_chance();
  Error describe(Error error);

  std::shared_ptr<Session> session_;
  Bytes body_;  // framed and padded; wiped at the end
  Error body_error_{Code::kOk, {}};
  std::shared_ptr<Cancellation> cancel_;
  std::shared_ptr<const VerifiedNode> node_;
  std::unique_ptr<Attempt> attempt_;
  std::string error_param_;
  Deadline deadline_;
  int attempts_ = 0;
  bool began_ = false, ended_ = false, cut_ = false, refetched_ = false;
  bool token_sent_ = false, token_retried_ = false, rekeyed_ = false;
  friend class Session;
};

}  // namespace tie::client
