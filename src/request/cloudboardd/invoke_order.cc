#include "request/cloudboardd/invoke_order.h"

#include <algorithm>

#include "request/cloudboardd/limits.h"

namespace tie::request::cloudboard {
namespace {

constexpr uint32_t kProtocolVersion = 1;
constexpr const char* kWorkload = "tie-inference";

bool is_lower_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::unexpected<Error> out_of_order(const char* what) {
  return fail(Code::kFailedPrecondition, what);
}

}  // namespace

Result<void> InvokeOrder::next(const v1::InvokeRequest& message) {
  using Kind = v1::InvokeRequest;
  if (state_ == State::kComplete) return out_of_order("The request is complete; nothing may follow its last chunk.");
  switch (message.kind_case()) {
    case Kind::kSetup:
      if (state_ != State::kSetup) return out_of_order("Setup comes once, first.");
      if (message.setup().protocol_version() != kProtocolVersion)
        return fail(Code::kUnsupportedFeature, "This node speaks protocol version 1.");
      state_ = State::kParameters;
      return {};
    case Kind::kParameters:
      if (state_ != State::kParameters) return out_of_order("Parameters come once, after setup.");
      state_ = State::kChunks;
      return {};
    case Kind::kChunk:
      if (state_ != State::kChunks) return out_of_order("Chunks come after parameters.");
      if (message.chunk().final()) state_ = State::kComplete;
      return {};
    case Kind::kTerminate:
      if (state_ == State::kSetup) return out_of_order("Setup comes first.");
      state_ = State::kComplete;
      return {};
    default:
      return out_of_order("A message must be setup, parameters, chunk or terminate.");
  }
}

Result<void> InvokeOrder::client_closed() const {
  if (state_ == State::kComplete) return {};
  return out_of_order("The stream ended before the request's final chunk.");
}

Result<v1::ClearParameters> parse_clear_parameters(std::string_view bytes) {
  v1::ClearParameters out;
  if (bytes.size() > kMaxClearParametersBytes)
    return fail(Code::kTooLarge, "The clear parameters are larger than 16 KiB.");
  if (!out.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return fail(Code::kBadRequest, "The clear parameters do not parse.");
  if (out.workload() != kWorkload) return fail(Code::kModelNotFound, "This node serves the workload tie-inference.");
  if (out.key_id().size() != kKeyIdBytes) return fail(Code::kBadRequest, "key_id must be 32 bytes.");
  if (out.encapsulated_key().empty() || out.encapsulated_key().size() > kMaxEncBytes)
    return fail(Code::kBadRequest, "encapsulated_key has a wrong length.");
  if (out.sealed_dek().size() != kSealedDekBytes) return fail(Code::kBadRequest, "sealed_dek must be 48 bytes.");
  if (out.request_id().size() != kRequestIdDigits || !is_lower_hex(out.request_id()))
    return fail(Code::kBadRequest, "request_id must be 32 lower-case hex digits.");
  if (out.trace_id().size() > kMaxTraceIdBytes || !is_printable(out.trace_id()))
    return fail(Code::kBadRequest, "trace_id must be at most 64 printable characters.");
  return out;
}

}  // namespace tie::request::cloudboard
