#include "request/cloud_app/grpc_call.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/secret_bytes.h"
#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

constexpr size_t kPrefixBytes = 5;  // a flag and a length before each message
constexpr size_t kOutputPieceBytes = 64 << 10;
constexpr size_t kCompactBytes = 64 << 10;  // of taken messages before they are wiped, even if another has begun

nghttp2_nv header(std::string_view name, std::string_view value) {
  auto bytes = [](std::string_view s) { return reinterpret_cast<uint8_t*>(const_cast<char*>(s.data())); };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

std::string_view text(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

struct GrpcCall::State {
  std::unique_ptr<nghttp2_session, void (*)(nghttp2_session*)> session{nullptr, nghttp2_session_del};
  int32_t stream = 0;
  bool ended = false, http_failed = false, going_away = false;
  int grpc_status = kNoStatus;
  std::string request;  // with its prefix
  size_t request_taken = 0;
  Bytes out;
  size_t out_sent = 0;
  std::string in;  // the answer's messages, from in_taken on
  size_t in_taken = 0;

  ~State() {
    secure_zero(request);
    secure_zero(out);
    secure_zero(in);
  }

  void on_header(std::string_view name, std::string_view value) {
    if (name == ":status") http_failed = value != "200";
    if (name != "grpc-status") return;
    auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), grpc_status);
    if (error != std::errc() || end != value.data() + value.size() || grpc_status < 0) grpc_status = kNoStatus;
  }

  size_t take_request(uint8_t* to, size_t most) {
    size_t size = std::min(most, request.size() - request_taken);
    std::memcpy(to, request.data() + request_taken, size);
    request_taken += size;
    return size;
  }
};

namespace {

GrpcCall::State& state_of(void* user_data) {
  return *static_cast<GrpcCall::State*>(user_data);
}

int on_header(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t name_size, const uint8_t* value,
              size_t value_size, uint8_t, void* user_data) {
  auto& state = state_of(user_data);
  if (frame->hd.stream_id == state.stream) state.on_header(text(name, name_size), text(value, value_size));
  return 0;
}

int on_data(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* bytes, size_t size, void* user_data) {
  auto& state = state_of(user_data);
  if (stream == state.stream) state.in.append(text(bytes, size));
  return 0;
}

int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
  if (frame->hd.type == NGHTTP2_GOAWAY) state_of(user_data).going_away = true;
  return 0;
}

int on_stream_close(nghttp2_session*, int32_t stream, uint32_t, void* user_data) {
  auto& state = state_of(user_data);
  if (stream == state.stream) state.ended = true;
  return 0;
}

ssize_t read_request(nghttp2_session*, int32_t, uint8_t* to, size_t most, uint32_t* flags, nghttp2_data_source* source,
                     void*) {
  auto& state = state_of(source->ptr);
  size_t size = state.take_request(to, most);
  if (state.request_taken == state.request.size()) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return static_cast<ssize_t>(size);
}

Error http2_error(ssize_t code) {
  return {Code::kCorrupt, std::string("HTTP/2: ") + nghttp2_strerror(static_cast<int>(code))};
}

}  // namespace

GrpcCall::GrpcCall(std::unique_ptr<State> state) : state_(std::move(state)) {}
GrpcCall::~GrpcCall() = default;

Result<std::unique_ptr<GrpcCall>> GrpcCall::create() {
  auto state = std::make_unique<State>();
  nghttp2_session_callbacks* made = nullptr;
  if (nghttp2_session_callbacks_new(&made) != 0) return fail(Code::kInternal, "no memory for HTTP/2");
  std::unique_ptr<nghttp2_session_callbacks, void (*)(nghttp2_session_callbacks*)> callbacks(
      made, nghttp2_session_callbacks_del);
  nghttp2_session_callbacks_set_on_header_callback(made, on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, on_data);
  nghttp2_session_callbacks_set_on_frame_recv_callback(made, on_frame);
  nghttp2_session_callbacks_set_on_stream_close_callback(made, on_stream_close);
  nghttp2_session* session = nullptr;
  if (nghttp2_session_client_new(&session, made, state.get()) != 0)
    return fail(Code::kInternal, "no memory for HTTP/2");
  state->session.reset(session);
  // Room for many tokens: a small window is announced anew after each one, which wakes both sides once more.
  const std::array settings{nghttp2_settings_entry{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                            nghttp2_settings_entry{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindowBytes},
                            nghttp2_settings_entry{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kMaxReplyHeaderBytes}};
  int error = nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  if (error == 0) error = nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, kStreamWindowBytes);
  if (error != 0) return std::unexpected(http2_error(error));
  return std::unique_ptr<GrpcCall>(new GrpcCall(std::move(state)));
}

Result<void> GrpcCall::start(const std::string& method, std::string message, int64_t timeout_ms) {
  if (state_->stream != 0) return fail(Code::kInternal, "one call a connection");
  if (message.size() > static_cast<size_t>(kMaxRuntimeMessageBytes))
    return fail(Code::kTooLarge, "the runtime's message is over the limit");
  Bytes prefix{0};
  append_u32_be(prefix, static_cast<uint32_t>(message.size()));
  state_->request = to_string(prefix) + message;
  secure_zero(message);
  const std::string timeout = std::to_string(timeout_ms) + "m";
  const std::array headers{header(":method", "POST"),       header(":scheme", "http"),
                           header(":path", method),         header(":authority", "runtime"),
                           header("te", "trailers"),        header("content-type", "application/grpc"),
                           header("grpc-timeout", timeout), header("user-agent", "tie-cloud-app")};
  nghttp2_data_provider provider{.source = {.ptr = state_.get()}, .read_callback = read_request};
  int32_t stream =
      nghttp2_submit_request(state_->session.get(), nullptr, headers.data(), headers.size(), &provider, nullptr);
  if (stream < 0) return std::unexpected(http2_error(stream));
  state_->stream = stream;
  return {};
}

void GrpcCall::cancel() {
  if (state_->stream != 0 && !state_->ended)
    nghttp2_submit_rst_stream(state_->session.get(), NGHTTP2_FLAG_NONE, state_->stream, NGHTTP2_CANCEL);
}

Result<void> GrpcCall::feed(ByteView bytes) {
  ssize_t taken = nghttp2_session_mem_recv(state_->session.get(), bytes.data(), bytes.size());
  if (taken < 0) return std::unexpected(http2_error(taken));
  return {};
}

// Frames gather, so that a request goes out in few system calls.
ByteView GrpcCall::output() {
  State& state = *state_;
  if (state.out_sent == state.out.size()) {
    secure_zero(state.out);
    state.out.clear();
    state.out_sent = 0;
    const uint8_t* frame = nullptr;
    ssize_t size = 0;
    while (state.out.size() < kOutputPieceBytes && (size = nghttp2_session_mem_send(state.session.get(), &frame)) > 0)
      append(state.out, ByteView(frame, static_cast<size_t>(size)));
  }
  return ByteView(state.out).subspan(state.out_sent);
}

void GrpcCall::sent(size_t bytes) {
  state_->out_sent += bytes;
}

Result<std::optional<std::string>> GrpcCall::next_message() {
  State& state = *state_;
  size_t have = state.in.size() - state.in_taken;
  if (have < kPrefixBytes) return std::nullopt;
  auto* prefix = reinterpret_cast<const uint8_t*>(state.in.data() + state.in_taken);
  size_t size = load_u32_be(prefix + 1);
  if (prefix[0] != 0 || size > static_cast<size_t>(kMaxRuntimeMessageBytes))
    return fail(Code::kCorrupt, "the runtime's message is compressed or over the limit");
  if (have < kPrefixBytes + size) return std::nullopt;
  std::string message = state.in.substr(state.in_taken + kPrefixBytes, size);
  state.in_taken += kPrefixBytes + size;
  if (state.in_taken == state.in.size() || state.in_taken >= kCompactBytes) {
    const size_t left = state.in.size() - state.in_taken;
    std::memmove(state.in.data(), state.in.data() + state.in_taken, left);
    secure_zero(state.in.data() + left, state.in_taken);
    state.in.resize(left);
    state.in_taken = 0;
  }
  return message;
}

std::optional<int> GrpcCall::status() const {
  if (!state_->ended && nghttp2_session_want_read(state_->session.get()) != 0) return std::nullopt;
  return state_->http_failed || !state_->ended ? kNoStatus : state_->grpc_status;
}

size_t GrpcCall::buffered() const {
  return state_->in.size();
}

bool GrpcCall::going_away() const {
  return state_->going_away;
}

}  // namespace tie::request::app
