#include "client/session/grpc_error.h"

#include <optional>

namespace tie::client {
namespace {

std::optional<Code> code_named(std::string_view name) {
  for (int i = 1; i <= static_cast<int>(Code::kIo); ++i) {
    if (error_info(static_cast<Code>(i)).name == name) return static_cast<Code>(i);
  }
  return std::nullopt;
}

Code code_of_status(grpc::StatusCode status) {
  switch (status) {
    case grpc::StatusCode::CANCELLED:
      return Code::kCancelled;
    case grpc::StatusCode::INVALID_ARGUMENT:
      return Code::kBadRequest;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Code::kDeadline;
    case grpc::StatusCode::NOT_FOUND:
      return Code::kNotFound;
    case grpc::StatusCode::PERMISSION_DENIED:
      return Code::kPermissionDenied;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Code::kOverloaded;
    case grpc::StatusCode::FAILED_PRECONDITION:
      return Code::kFailedPrecondition;
    case grpc::StatusCode::UNAVAILABLE:
      return Code::kNotReady;
    case grpc::StatusCode::UNAUTHENTICATED:
      return Code::kUnauthenticated;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Error error_of(const grpc::Status& status, const grpc::ClientContext& context, const std::string& node) {
  const auto& trailers = context.GetServerTrailingMetadata();
  auto named = trailers.find("tie-error");
  if (named != trailers.end()) {
    if (auto code = code_named({named->second.data(), named->second.size()})) {
      return {*code, status.error_message().empty() ? error_info(*code).sentence : status.error_message()};
    }
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return {Code::kNotReady, "the node is not reachable at " + node +
                                 ": start it with `./dev up` (or `tie up`), or name another with --node HOST:PORT"};
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return {Code::kInternal, "what answers at " + node + " is not a TIE node"};
  }
  Code code = code_of_status(status.error_code());
  return {code, status.error_message().empty() ? error_info(code).sentence : status.error_message()};
}

}  // namespace tie::client
