#include "supervision/rpc/unix_grpc.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <array>

#include "os/unix_socket.h"

namespace tie::rpc {

Result<std::shared_ptr<grpc::Channel>> connect(const std::string& socket_path, Deadline deadline) {
  TIE_TRY(os::Fd fd, os::connect_unix(socket_path, deadline));
  int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) return fail_errno("fcntl", errno);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // messages are small, and each would be answered with a ping
  auto channel = grpc::CreateCustomInsecureChannelFromFd("localhost", fd.release(), arguments);
  if (channel == nullptr) return fail(Code::kInternal, "no channel on " + socket_path);
  return channel;
}

std::chrono::system_clock::time_point call_deadline(int64_t ms) {
  return std::chrono::system_clock::now() + std::chrono::milliseconds(ms);
}

grpc::Status to_status(const Error& error, grpc::ServerContext* context) {
  const ErrorInfo& info = error_info(error.code);
  if (context != nullptr) context->AddTrailingMetadata("tie-error", info.name);
  return {static_cast<grpc::StatusCode>(info.grpc_status), error.message};
}

Error to_error(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return {Code::kOk, ""};
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return {Code::kDeadline, status.error_message()};
    case grpc::StatusCode::CANCELLED:
      return {Code::kCancelled, status.error_message()};
    case grpc::StatusCode::UNAVAILABLE:
      return {Code::kNotReady, status.error_message()};
    case grpc::StatusCode::INVALID_ARGUMENT:
      return {Code::kBadRequest, status.error_message()};
    case grpc::StatusCode::FAILED_PRECONDITION:
      return {Code::kFailedPrecondition, status.error_message()};
    case grpc::StatusCode::NOT_FOUND:
      return {Code::kNotFound, status.error_message()};
    default:
      return {Code::kInternal, status.error_message()};
  }
}

Result<UnixGrpcServer> UnixGrpcServer::start(const std::string& socket_path,
                                             const std::vector<grpc::Service*>& services, int max_threads) {
  // gRPC's own bind error says little; trying the path first gives the reason.
  {
    auto probe = os::listen_unix(socket_path);
    if (!probe) return std::unexpected(std::move(probe.error()));
  }
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("supervision");
  quota.SetMaxThreads(max_threads);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int bound = 0;
  builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials(), &bound);
  for (grpc::Service* service : services) builder.RegisterService(service);
  UnixGrpcServer out;
  out.server_ = builder.BuildAndStart();
  if (out.server_ == nullptr || bound == 0) return fail(Code::kIo, "serving gRPC on " + socket_path + " failed");
  if (::chmod(socket_path.c_str(), 0660) != 0) return fail_errno("setting the mode of " + socket_path, errno);
  return out;
}

UnixGrpcServer::~UnixGrpcServer() {
  if (server_ != nullptr) stop(Deadline::in_ms(0));
}

void UnixGrpcServer::stop(Deadline deadline) {
  if (server_ == nullptr) return;
  server_->Shutdown(call_deadline(deadline.remaining_ms()));
  server_->Wait();
  server_.reset();
}

}  // namespace tie::rpc
