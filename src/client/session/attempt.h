// One sealed request on the wire and its opened answer: fresh key, one gRPC stream, never retried. Private to this
// folder. One thread; cancel through the Cancellation that start() was given.
#pragma once
#include <grpcpp/completion_queue.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "client/session/cancellation.h"
#include "client/session/node_link.h"
#include "client/session/node_verifier.h"
#include "inference.pb.h"

namespace tie::client {

class Attempt {
 public:
  // Seals and sends the whole body (framed and padded). Errors: those of the node, by the table.
  static Result<std::unique_ptr<Attempt>> start(NodeLink& link, const VerifiedNode& node, ByteView body,
                                                Deadline deadline, Cancellation& cancel,
                                                const std::function<void(ByteView)>& dek_witness);
  ~Attempt();

  // The next opened message. A message with `final` set is the authenticated end; do not call again after it.
  Result<void> next(v1::ResponseMessage& message);
  // Nothing of what follows is wanted (the node has sent its error): the stream is read to its end without being
  // cancelled, for a moment.
  void discard_rest() { discarding_ = true; }

 private:
  // False when it did not complete in time.
  bool wait_for_operation_until(std::chrono::system_clock::time_point limit, bool& ok);
  void close();
  Attempt(NodeLink& link, Deadline deadline, Cancellation& cancel);
  Result<void> send(const VerifiedNode& node, ByteView body, const std::function<void(ByteView)>& dek_witness);
  Result<void> send_chunks(crypto::ChunkSealer& sealer, ByteView body);
  Result<void> write(const v1::InvokeRequest& request, bool last, bool more_follows);
  Result<void> open_chunk(const v1::SealedChunk& chunk, v1::ResponseMessage& message);
  bool wait_for_operation();
  Error finish_error();

  NodeLink& link_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriterInterface<v1::InvokeRequest, v1::InvokeResponse>> stream_;
  std::unique_ptr<Cancellation::Hook> hook_;
  crypto::RequestKey key_;
  std::optional<crypto::SealedRequest> sealed_;
  std::optional<crypto::ResponseOpener> opener_;
  v1::InvokeResponse incoming_;
  bool acknowledged_ = false, final_seen_ = false, finished_ = false, discarding_ = false, vanished_ = false;
};

}  // namespace tie::client
