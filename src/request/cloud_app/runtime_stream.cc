#include "request/cloud_app/runtime_stream.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>

#include <cerrno>

#include "grpc_service.grpc.pb.h"
#include "os/unix_socket.h"
#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

using inference::ModelInferRequest;
using inference::ModelStreamInferResponse;

std::unexpected<Refusal> lost() {
  return refuse(Code::kRuntimeLost, error_info(Code::kRuntimeLost).sentence);
}

class GrpcStream final : public RuntimeStream {
 public:
  GrpcStream(os::Fd connection, os::Fd copy) : copy_(std::move(copy)) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxRuntimeMessageBytes);
    arguments.SetMaxSendMessageSize(kMaxRuntimeMessageBytes);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    // Room for many tokens: a small window is announced anew after each one, which wakes both sides once more.
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
    channel_ = grpc::CreateCustomInsecureChannelFromFd("runtime", connection.release(), arguments);
    stub_ = inference::GRPCInferenceService::NewStub(channel_);
  }

  int hangup_fd() const override { return copy_.get(); }

  void start(const RuntimeCall& call) override {
    build_request(call, request_);
    // The call's headers travel with its message.
    context_.set_initial_metadata_corked(true);
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(call.deadline_ms));
    stream_ = stub_->PrepareAsyncModelStreamInfer(&context_, &queue_);
    stream_->StartCall(nullptr);
    stream_->Write(request_, grpc::WriteOptions().set_last_message(), tag(kWritten));
    stream_->Read(&response_, tag(kRead));
  }

  Checked<Got> next(int64_t wait_ms, RuntimeEvent& event) override {
    auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(wait_ms);
    for (;;) {
      void* got = nullptr;
      bool ok = false;
      auto status = queue_.AsyncNext(&got, &ok, deadline);
      if (status == grpc::CompletionQueue::TIMEOUT) return Got::kNothingYet;
      if (status == grpc::CompletionQueue::SHUTDOWN) return lost();
      if (got == tag(kWritten) || got == nullptr) continue;  // a failed write shows as a failed read
      if (got == tag(kFinished)) return ended();
      if (!ok) {
        stream_->Finish(&status_, tag(kFinished));
        continue;
      }
      auto read = read_response(response_);
      if (!read) return std::unexpected(std::move(read.error()));
      event = std::move(*read);
      if (!event.final) stream_->Read(&response_, tag(kRead));
      return Got::kEvent;
    }
  }

  void cancel() override { context_.TryCancel(); }

 private:
  enum Tag : intptr_t { kWritten = 1, kRead, kFinished };
  static void* tag(Tag value) { return reinterpret_cast<void*>(value); }

  Checked<Got> ended() {
    switch (status_.error_code()) {
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        return refuse(Code::kDeadline, error_info(Code::kDeadline).sentence);
      case grpc::StatusCode::RESOURCE_EXHAUSTED:
        return refuse(Code::kOverloaded, error_info(Code::kOverloaded).sentence);
      default:
        return lost();
    }
  }

  os::Fd copy_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<ModelInferRequest, ModelStreamInferResponse>> stream_;
  ModelInferRequest request_;
  ModelStreamInferResponse response_;
  grpc::Status status_;
};

}  // namespace

Result<std::unique_ptr<RuntimeStream>> RuntimeStream::connect(const std::string& socket) {
  TIE_TRY(os::Fd fd, os::connect_unix(socket, Deadline::in_ms(kConnectTimeoutMs)));
  TIE_TRY(os::Fd copy, fd.duplicate());
  int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) return fail_errno("fcntl", errno);
  return std::unique_ptr<RuntimeStream>(new GrpcStream(std::move(fd), std::move(copy)));
}

}  // namespace tie::request::app
