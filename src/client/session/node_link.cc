#include "client/session/node_link.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include "client/session/grpc_error.h"
#include "client/session/limits.h"

namespace tie::client {
namespace {

std::shared_ptr<grpc::Channel> open_channel(const std::string& node) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);     // our retry rule needs a fresh key each time
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // an environment variable must not lead the traffic elsewhere
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);  // that is what it bounds, whatever its name
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS,
              100);  // else a node that comes back is not looked for during half a minute
  // No gRPC keepalive: it re-arms a timer at every event. Attempt asks is_alive() when a stream has been silent.
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // events are small: probing would answer each with a ping
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(kMaxIncomingMessageBytes);
  args.SetCompressionAlgorithm(GRPC_COMPRESS_NONE);  // compression would make the padded sizes speak
  return grpc::CreateCustomChannel(node, grpc::InsecureChannelCredentials(), args);
}

}  // namespace

void NodeLink::add_credential(grpc::ClientContext& context) const {
  if (!credential_.empty()) context.AddMetadata("authorization", credential_);
}

NodeLink::NodeLink(std::string node, std::string credential)
    : node_(std::move(node)),
      credential_(std::move(credential)),
      channel_(open_channel(node_)),
      stub_(v1::CloudBoard::NewStub(channel_)) {}

void NodeLink::reconnect_now() {
  grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
}

Result<v1::AttestationBundle> NodeLink::fetch_attestation(ByteView challenge, int64_t timeout_ms) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  v1::FetchAttestationRequest request;
  request.set_challenge(challenge.data(), challenge.size());
  v1::AttestationBundle bundle;
  grpc::Status status = stub_->FetchAttestation(&context, request, &bundle);
  if (!status.ok()) return std::unexpected(error_of(status, context, node_));
  return bundle;
}

bool NodeLink::is_alive(int64_t timeout_ms) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  v1::AttestationBundle published;
  grpc::Status status = stub_->FetchAttestation(&context, {}, &published);
  return status.error_code() != grpc::StatusCode::UNAVAILABLE &&
         status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace tie::client
