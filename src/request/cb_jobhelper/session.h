// What cb_jobhelper does with its one request, without any input or output of its own: events go in, messages come out
// through Peers. Order: Start, the keys reply, chunks, the app's events, one sealed final. Nothing reaches the app
// before the request is accepted: its key opened, its one-time token checked when the node asks for one, and its first
// chunk authenticated. Every refusal before that is one and the same error, and nothing was sealed by then. After it
// every end of the request is a sealed, authenticated final summary. Threads: one. Secrets: the request's DEK and
// plaintext; they die with the object. Source: spec, "On-Node Request Termination".
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cloud_app.pb.h"
#include "crypto/message_splitter.h"
#include "crypto/request_open.h"
#include "inference.pb.h"
#include "jobhelper.pb.h"
#include "request/cb_jobhelper/limits.h"
#include "wsd.pb.h"

namespace tie::request::jobhelper {

// Where the session's messages go. A send never fails here: a peer that is gone is reported through the session's
// lost_*() calls.
class Peers {
 public:
  virtual ~Peers() = default;
  virtual void to_cloudboard(const v1::FromHelper& message) = 0;
  virtual void to_app(const v1::ToApp& message) = 0;
  virtual void to_keys(const v1::DecapRequest& message) = 0;
};

// Decides on a one-time token. With one in Session every request must carry a token; nullptr means that the node takes
// none: a request that must carry one is then refused.
using TokenVerifier = std::function<bool(ByteView token)>;

class Session {
 public:
  explicit Session(Peers& peers, TokenVerifier verifier = nullptr) : peers_(peers), verifier_(std::move(verifier)) {}

  // What the peers say. Messages out of order end the request.
  void from_cloudboard(const v1::ToHelper& message);
  void from_keys(const v1::DecapReply& reply);
  void from_app(const v1::FromApp& message);
  void lost_cloudboard();
  void lost_keys();
  void lost_app();
  // Something the process itself ran into (a limit, a deadline). Ends the request as a failure of the node.
  void give_up();

  bool done() const { return state_ == State::kDone; }
  bool started() const { return state_ != State::kIdle; }
  bool waits_for_keys() const { return state_ == State::kDecapsulating; }
  // False while more sealed input would have to be held: the caller stops reading cloudboardd.
  bool takes_input() const { return buffered_bytes_ < kMaxBufferedBeforeKeyBytes; }

 private:
  enum class State { kIdle, kDecapsulating, kAccepting, kServing, kDone };
  struct Sealed {
    std::string bytes;
    bool final;
  };
  using Final = v1::FinalSummary;

  void start(const v1::ToHelper::Start& start);
  void chunk(const v1::ToHelper::Chunk& chunk);
  void open_chunk(ByteView sealed, bool final);
  Result<void> open_request(const v1::DecapReply& reply);
  // True once the token, when one is asked for, has been taken from the stream and accepted; `plaintext` is then what
  // follows it.
  Result<bool> check_token(Bytes& plaintext, bool final);
  Result<void> accept();
  void send_input(ByteView plaintext, bool final);
  void derive_key(const std::string& purpose);
  void seal_event(const std::string& message);
  void refuse();                                     // the uniform error
  void fail_clear(Code code, const char* sentence);  // before decapsulation only
  void finish(Final::Status status);

  Peers& peers_;
  TokenVerifier verifier_;
  State state_ = State::kIdle;
  std::string clear_parameters_, request_id_, trace_id_, principal_;
  std::string key_id_, enc_, sealed_dek_;
  bool token_required_ = false;
  std::vector<Sealed> buffered_;
  size_t buffered_bytes_ = 0;
  bool last_chunk_seen_ = false;
  size_t derived_keys_ = 0;
  std::optional<crypto::OpenedRequest> opened_;
  std::optional<crypto::ChunkOpener> opener_;
  std::optional<crypto::ResponseSealer> sealer_;
  Bytes token_stream_;  // plaintext until the token message is whole
};

}  // namespace tie::request::jobhelper
