#include "keys/workload_servicesd/unix_channel.h"

#include "keys/workload_servicesd/limits.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::wsd {
namespace {

std::shared_ptr<grpc::Channel> make_channel(const std::string& path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);  // the limit of one attempt to connect
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // messages are small, and each would be answered with a ping
  arguments.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
  return grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

UnixChannel::UnixChannel(const std::string& path) : channel_(make_channel(path)), watcher_([this] { watch(); }) {}

UnixChannel::~UnixChannel() {
  stopping_ = true;
  watcher_.join();
}

void UnixChannel::watch() {
  auto state = channel_->GetState(/*try_to_connect=*/true);
  while (!stopping_) {
    if (!channel_->WaitForStateChange(state, rpc::call_deadline(kLinkPollMs))) continue;
    const bool was_up = state == GRPC_CHANNEL_READY;
    state = channel_->GetState(/*try_to_connect=*/true);
    if (was_up || state == GRPC_CHANNEL_READY) ++changes_;
  }
}

}  // namespace tie::wsd
