#include "keys/key_protectiond/kps_server.h"

#include <errno.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>

#include <system_error>

#include "keys/key_protectiond/limits.h"
#include "os/unix_socket.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::kps {
namespace {

std::shared_ptr<grpc::Server> make_server(grpc::Service& service) {
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("key_protectiond");
  quota.SetMaxThreads(kMaxConcurrentCalls);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE,
                             0);  // messages are small, and each would be answered with a ping
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  builder.RegisterService(&service);
  return builder.BuildAndStart();
}

}  // namespace

Result<std::unique_ptr<KpsServer>> KpsServer::start(const ListenOptions& options, grpc::Service& service) {
  if (options.socket.empty() && options.tcp_address.empty())
    return fail(Code::kBadRequest, "key_protectiond needs a socket or an address to listen on");
  if (!options.tcp_address.empty() && !options.tls)
    return fail(Code::kBadRequest, "a TCP address needs a certificate: the control calls must know their peer");
  std::unique_ptr<KpsServer> out(new KpsServer(options.peer_uid));
  if (!options.tcp_address.empty()) {
    TIE_TRY(keys::TlsContext tls, keys::TlsContext::server(*options.tls));
    out->tls_.emplace(std::move(tls));
    TIE_TRY(out->tcp_listener_, keys::listen_tcp(options.tcp_address));
  }
  if (!options.socket.empty()) {
    TIE_TRY(out->unix_listener_, os::listen_unix(options.socket));
  }
  out->server_ = make_server(service);
  if (out->server_ == nullptr) return fail(Code::kInternal, "gRPC does not start");
  KpsServer* self = out.get();
  if (out->unix_listener_) out->acceptors_.emplace_back([self] { self->accept_unix_peers(); });
  if (out->tcp_listener_) out->acceptors_.emplace_back([self] { self->accept_tcp_peers(); });
  return out;
}

KpsServer::~KpsServer() {
  stop(Deadline::in_ms(0));
}

void KpsServer::stop(Deadline deadline) {
  if (server_ == nullptr) return;
  stopping_ = true;
  for (std::thread& acceptor : acceptors_) acceptor.join();
  while (handshakes_ != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // each ends by kHandshakeMs
  server_->Shutdown(rpc::call_deadline(deadline.remaining_ms()));
  server_->Wait();
  server_.reset();
}

void KpsServer::accept_unix_peers() {
  while (!stopping_) {
    auto connection = os::accept_unix(unix_listener_.get(), Deadline::in_ms(kAcceptPollMs));
    if (!connection) {
      if (connection.error().code != Code::kDeadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(kAcceptPollMs));
      continue;
    }
    if (peer_uid_) {
      const auto peer = os::peer_credentials(connection->get());
      if (!peer || peer->uid != *peer_uid_) continue;
    }
    hand_over(std::move(*connection));
  }
}

void KpsServer::accept_tcp_peers() {
  while (!stopping_) {
    auto connection = os::accept_unix(tcp_listener_.get(), Deadline::in_ms(kAcceptPollMs));
    if (!connection) {
      if (connection.error().code != Code::kDeadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(kAcceptPollMs));
      continue;
    }
    if (handshakes_ >= kMaxHandshakes)
      continue;  // closed: strangers who connect and stay silent cost no more than this
    ++handshakes_;
    try {
      std::thread([this, tcp = std::move(*connection)]() mutable { greet(std::move(tcp)); }).detach();
    } catch (const std::system_error&) {
      --handshakes_;
    }
  }
}

void KpsServer::greet(os::Fd tcp) {
  auto plain = keys::start_tls(*tls_, std::move(tcp), Deadline::in_ms(kHandshakeMs));
  if (plain && !stopping_) hand_over(std::move(*plain));
  --handshakes_;
}

void KpsServer::hand_over(os::Fd connection) {
  const int flags = ::fcntl(connection.get(), F_GETFL);
  if (flags < 0 || ::fcntl(connection.get(), F_SETFL, flags | O_NONBLOCK) != 0) return;
  grpc::AddInsecureChannelFromFd(server_.get(), connection.release());
}

}  // namespace tie::kps
