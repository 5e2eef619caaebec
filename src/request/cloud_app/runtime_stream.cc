#include "request/cloud_app/runtime_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/secret_bytes.h"
#include "os/unix_socket.h"
#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

constexpr size_t kReadBytes = 32 << 10;
constexpr int kGrpcDeadlineExceeded = 4, kGrpcResourceExhausted = 8;

const char* const kMethod = "/inference.GRPCInferenceService/ModelStreamInfer";

Refusal lost() {
  return {Code::kRuntimeLost, error_info(Code::kRuntimeLost).sentence};
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

RuntimeStream::RuntimeStream(os::Fd socket, std::unique_ptr<GrpcCall> call)
    : socket_(std::move(socket)), call_(std::move(call)), buffer_(kReadBytes) {}

Result<std::unique_ptr<RuntimeStream>> RuntimeStream::connect(const std::string& socket) {
  TIE_TRY(os::Fd fd, os::connect_unix(socket, Deadline::in_ms(kConnectTimeoutMs)));
  TIE_TRY(auto call, GrpcCall::create());
  std::unique_ptr<RuntimeStream> stream(new RuntimeStream(std::move(fd), std::move(call)));
  TIE_CHECK_OK(stream->flush());
  return stream;
}

bool RuntimeStream::keep_alive() {
  return receive() && flush() && !call_->going_away() && !call_->status();
}

void RuntimeStream::start(const RuntimeCall& call) {
  inference::ModelInferRequest request;
  build_request(call, request);
  std::string message = request.SerializeAsString();
  for (std::string& contents : *request.mutable_raw_input_contents()) secure_zero(contents);
  broken_ = !call_->start(kMethod, std::move(message), call.deadline_ms) || !flush();
}

Checked<RuntimeStream::Got> RuntimeStream::next(int64_t wait_ms, RuntimeEvent& event) {
  Deadline deadline = Deadline::in_ms(wait_ms);
  for (bool read = false;; read = true) {
    if (broken_) return std::unexpected(lost());
    auto message = call_->next_message();
    if (!message) return std::unexpected(lost());
    if (*message) {
      bool parsed = response_.ParseFromString(**message);
      secure_zero(**message);
      if (!parsed) return refuse(Code::kInternal, "The runtime's answer is malformed.");
      TIE_TRY(event, read_response(response_));
      return Got::kEvent;
    }
    if (call_->status()) return std::unexpected(ended());
    // A runtime whose words never make a message keeps the socket readable, not the caller.
    if (read && deadline.passed()) return Got::kNothingYet;
    pollfd watched{socket_.get(), static_cast<short>(POLLIN | (wants_write_ ? POLLOUT : 0)), 0};
    int ready = ::poll(&watched, 1, static_cast<int>(deadline.remaining_ms()));
    if (ready == 0) return Got::kNothingYet;
    if (ready < 0 && errno != EINTR) return std::unexpected(lost());
    // Once the stream is over its last words may still be read.
    broken_ = !receive() && !call_->status();
    if (!broken_ && !flush() && !call_->status()) broken_ = true;
  }
}

void RuntimeStream::cancel() {
  call_->cancel();
  (void)flush();
}

Refusal RuntimeStream::ended() const {
  switch (call_->status().value_or(GrpcCall::kNoStatus)) {
    case kGrpcDeadlineExceeded:
      return {Code::kDeadline, error_info(Code::kDeadline).sentence};
    case kGrpcResourceExhausted:
      return {Code::kOverloaded, error_info(Code::kOverloaded).sentence};
    default:
      return lost();
  }
}

Result<void> RuntimeStream::receive() {
  ssize_t n = ::recv(socket_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (n == 0) return fail(Code::kRuntimeLost, "the runtime closed its connection");
  if (n < 0 && would_block(errno)) return {};
  if (n < 0) return fail_errno("hearing the runtime", errno);
  auto bytes = std::span(buffer_).first(static_cast<size_t>(n));
  auto fed = call_->feed(bytes);
  secure_zero(bytes.data(), bytes.size());
  return fed;
}

Result<void> RuntimeStream::flush() {
  wants_write_ = false;
  for (ByteView out; !(out = call_->output()).empty();) {
    ssize_t n = ::send(socket_.get(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block(errno)) {
      wants_write_ = true;
      return {};
    }
    if (n < 0) return fail_errno("telling the runtime", errno);
    call_->sent(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace tie::request::app
