// One gRPC call of a client over HTTP/2, as bytes in and bytes out: no socket, no thread, no clock. The request process
// makes exactly one call in its life, and gRPC's own client costs it seven threads and more start time than everything
// else (docs/decisions/nghttp2-in-the-request-process.md). Called by RuntimeStream. Threads: one. Limits: kMaxRuntime-
// MessageBytes for a message either way; what has come and was not taken is at most one message and one feed() more.
// Untrusted: everything that is fed; a peer that breaks the protocol gives an error, after which the object is spent.
// Source: RFC 9113 (by nghttp2), gRPC over HTTP/2.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace tie::request::app {

class GrpcCall {
 public:
  // The connection's opening words are in output() at once.
  static Result<std::unique_ptr<GrpcCall>> create();
  ~GrpcCall();

  // The call's only message, after which it listens. Once.
  Result<void> start(const std::string& method, std::string message, int64_t timeout_ms);
  void cancel();

  // Bytes from the peer; take the messages that they complete before more is fed. kCorrupt: beyond repair.
  Result<void> feed(ByteView bytes);
  // The next piece to be sent, empty when there is none; valid until the next call of anything. `sent` of it have gone.
  ByteView output();
  void sent(size_t bytes);

  // A whole message of the answer, in order; nullopt: none yet. kCorrupt: compressed, or over the limit.
  Result<std::optional<std::string>> next_message();
  // The call's gRPC status once it has ended; kNoStatus when it ended without one, or the connection did: what breaks
  // HTTP/2 is answered with a goodbye, after which nothing is heard any more.
  static constexpr int kNoStatus = -1;
  std::optional<int> status() const;
  // Bytes held of the answer: at most a message, what one feed brought and 64 KiB.
  size_t buffered() const;
  // The peer takes no (more) calls on this connection.
  bool going_away() const;

  struct State;  // of grpc_call.cc

 private:
  explicit GrpcCall(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tie::request::app
