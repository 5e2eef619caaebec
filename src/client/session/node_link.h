// The gRPC channel to cloudboardd, its two unary questions, and the key drawn for the next request. Private to this
// folder. Any thread.
#pragma once
#include <memory>
#include <string>

#include "base/bytes.h"
#include "client/session/drawn_ahead.h"
#include "cloudboard.grpc.pb.h"

namespace tie::client {

class NodeLink {
 public:
  // credential: see SessionOptions.
  explicit NodeLink(std::string node, std::string credential = {});
  v1::CloudBoard::StubInterface& stub() { return *stub_; }
  const std::string& node() const { return node_; }
  DrawnAhead& drawn_ahead() { return drawn_ahead_; }
  // For requests alone: questions about the node are asked by nobody in particular.
  void add_credential(grpc::ClientContext& context) const;
  Result<v1::AttestationBundle> fetch_attestation(ByteView challenge, int64_t timeout_ms);
  // A retry looks for the node at once: gRPC's own pause after a failed connection is for callers without a rule of
  // their own.
  void reconnect_now();
  // Whether anything answers there; for a stream that has been silent.
  bool is_alive(int64_t timeout_ms);

 private:
  std::string node_, credential_;
  DrawnAhead drawn_ahead_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::CloudBoard::StubInterface> stub_;
};

}  // namespace tie::client
