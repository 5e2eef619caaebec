#include "keys/workload_servicesd/tls_channel.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>

#include <algorithm>

#include "keys/workload_servicesd/limits.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::wsd {

TlsChannel::TlsChannel(std::string address, keys::TlsContext tls)
    : address_(std::move(address)), tls_(std::move(tls)), keeper_([this] { keep_connected(); }) {}

TlsChannel::~TlsChannel() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->channel.reset();
  }
  state_->changed.notify_all();
  keeper_.join();
}

std::shared_ptr<grpc::Channel> TlsChannel::channel() const {
  std::lock_guard lock(state_->mutex);
  return state_->channel;
}

uint64_t TlsChannel::changes() const {
  std::lock_guard lock(state_->mutex);
  return state_->changes;
}

void TlsChannel::keep_connected() {
  int64_t pause_ms = kLinkPollMs;
  for (;;) {
    pause_ms = connect_once() ? kLinkPollMs : std::min(pause_ms * 2, kLastReconnectMs);
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->stopping || state_->channel == nullptr; });
    if (state_->changed.wait_for(lock, std::chrono::milliseconds(pause_ms), [this] { return state_->stopping; }))
      return;
  }
}

Result<void> TlsChannel::connect_once() {
  TIE_TRY(os::Fd tcp, keys::connect_tcp(address_, Deadline::in_ms(kKeyServiceTimeoutMs)));
  const auto ended =
      std::make_shared<bool>(false);  // guarded by the mutex: a link may end before its channel is in place
  const auto lost = [state = state_, ended] {
    std::lock_guard lock(state->mutex);
    *ended = true;
    state->channel.reset();
    ++state->changes;
    state->changed.notify_all();
  };
  TIE_TRY(os::Fd plain, keys::start_tls(tls_, std::move(tcp), Deadline::in_ms(kKeyServiceTimeoutMs), lost));
  const int flags = ::fcntl(plain.get(), F_GETFL);
  if (flags < 0 || ::fcntl(plain.get(), F_SETFL, flags | O_NONBLOCK) != 0) return fail_errno("fcntl", errno);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  auto channel = grpc::CreateCustomInsecureChannelFromFd("key-service", plain.release(), arguments);
  std::lock_guard lock(state_->mutex);
  if (state_->stopping || *ended) return {};
  state_->channel = std::move(channel);
  ++state_->changes;
  return {};
}

}  // namespace tie::wsd
