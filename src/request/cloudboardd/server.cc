#include "request/cloudboardd/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "request/cloudboardd/connection_gate.h"
#include "request/cloudboardd/services.h"

namespace tie::request::cloudboard {
namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
constexpr int64_t kShutdownMs = 2'000;

void set_public_limits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  builder.SetMaxSendMessageSize(kMaxGrpcMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxConnectionIdleMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinClientPingIntervalMs);
  // Growing windows would let a client push what its helper does not take yet into this daemon.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 256 << 10);
  builder.SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  grpc::ResourceQuota quota("public");
  quota.Resize(kMaxTransportBytes);
  builder.SetResourceQuota(quota);
}

class ServerImpl final : public Server {
 public:
  ~ServerImpl() override { stop(0); }

  Result<void> start(const ServerConfig& config) {
    config_ = config;
    TIE_TRY(loop_, EventLoop::create());
    TIE_TRY(node_, Node::create(*loop_, config.node));
    TIE_TRY(gate_, ConnectionGate::listen(*loop_, config.listen, config.max_connections));
    services_ = make_services(*loop_, *node_);
    TIE_CHECK_OK(start_control());
    TIE_CHECK_OK(start_public());
    node_->start(services_->listener([this](bool serving) { set_serving(serving); }));
    TIE_CHECK_OK(gate_->start([this](int listener, os::Fd connection) {
      Acceptor::NewConnectionParameters parameters;
      parameters.listener_fd = listener;
      parameters.fd = connection.release();  // gRPC's from here on
      acceptor_->HandleNewConnection(&parameters);
    }));
    thread_ = std::thread([this] { loop_->run(); });
    return {};
  }

  uint16_t port() const override { return gate_->port(); }

  void stop(int64_t drain_ms) override {
    if (!thread_.joinable()) return;
    std::promise<void> drained;
    loop_->post([&] {
      gate_->stop();
      node_->drain(drain_ms, [&](uint32_t) { drained.set_value(); });
    });
    drained.get_future().wait();
    auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(kShutdownMs);
    public_server_->Shutdown(deadline);
    control_server_->Shutdown(deadline);
    loop_->stop();
    thread_.join();
    ::unlink(config_.control_socket.c_str());
  }

 private:
  Result<void> start_control() {
    ::unlink(config_.control_socket.c_str());
    grpc::EnableDefaultHealthCheckService(false);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + config_.control_socket, grpc::InsecureServerCredentials());
    builder.RegisterService(services_->control_service());
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    control_server_ = builder.BuildAndStart();
    if (!control_server_) return fail(Code::kIo, "cannot listen on " + config_.control_socket);
    if (::chmod(config_.control_socket.c_str(), 0660) != 0)
      return fail_errno("setting the mode of the control socket", errno);
    return {};
  }

  Result<void> start_public() {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    set_public_limits(builder);
    builder.RegisterService(services_->public_service());
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    public_server_ = builder.BuildAndStart();
    grpc::EnableDefaultHealthCheckService(false);
    if (!public_server_) return fail(Code::kIo, "cannot start the public server");
    return {};
  }

  void set_serving(bool serving) {
    auto* health = public_server_->GetHealthCheckService();
    if (health == nullptr) return;
    health->SetServingStatus("", serving);
    health->SetServingStatus("tie.v1.CloudBoard", serving);
  }

  ServerConfig config_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<ConnectionGate> gate_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> control_server_, public_server_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::start(const ServerConfig& config) {
  auto server = std::make_unique<ServerImpl>();
  TIE_CHECK_OK(server->start(config));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace tie::request::cloudboard
