#include "base/result.h"

#include <array>
#include <cstring>

namespace tie {
namespace {
// grpc status numbers: 1 CANCELLED 2 UNKNOWN 3 INVALID_ARGUMENT 4 DEADLINE_EXCEEDED 5 NOT_FOUND 6 ALREADY_EXISTS 7
// PERMISSION_DENIED 8 RESOURCE_EXHAUSTED 9 FAILED_PRECONDITION 11 OUT_OF_RANGE 12 UNIMPLEMENTED 13 INTERNAL 14
// UNAVAILABLE 15 DATA_LOSS 16 UNAUTHENTICATED
constexpr std::array kTable = {
    ErrorInfo{Code::kOk, "OK", 0, 200, false, "Done."},
    ErrorInfo{Code::kBadRequest, "BAD_REQUEST", 3, 400, false, "The request is not valid."},
    ErrorInfo{Code::kContextExceeded, "CONTEXT_EXCEEDED", 3, 400, false,
              "The prompt is longer than the model's context."},
    ErrorInfo{Code::kModelNotFound, "MODEL_NOT_FOUND", 5, 404, false, "This node does not serve that model."},
    ErrorInfo{Code::kUnsupportedFeature, "UNSUPPORTED_FEATURE", 12, 400, false,
              "The request uses a feature that this node does not have."},
    ErrorInfo{Code::kUnauthenticated, "UNAUTHENTICATED", 16, 401, false, "The request could not be authenticated."},
    ErrorInfo{Code::kKeyUnknownOrExpired, "KEY_UNKNOWN_OR_EXPIRED", 9, 503, true,
              "The node no longer has the key this request was sealed to; fetch a new bundle."},
    ErrorInfo{Code::kReplayed, "REPLAYED", 6, 409, false, "This sealed request was seen before."},
    ErrorInfo{Code::kOverloaded, "OVERLOADED", 8, 429, true, "The node is at its limit; try again shortly."},
    ErrorInfo{Code::kNotReady, "NOT_READY", 14, 503, true, "The node is not ready; try again shortly."},
    ErrorInfo{Code::kRuntimeLost, "RUNTIME_LOST", 14, 502, true,
              "The inference runtime stopped while this request was running; try again."},
    ErrorInfo{Code::kDeadline, "DEADLINE", 4, 504, false, "The request took longer than its deadline."},
    ErrorInfo{Code::kCancelled, "CANCELLED", 1, 499, false, "The request was cancelled."},
    ErrorInfo{Code::kInternal, "INTERNAL", 13, 500, false, "The node failed on this request."},
    ErrorInfo{Code::kFailedPrecondition, "FAILED_PRECONDITION", 9, 400, false, "Messages came in the wrong order."},
    ErrorInfo{Code::kTooLarge, "TOO_LARGE", 8, 413, false, "The request is larger than the node accepts."},
    ErrorInfo{Code::kCorrupt, "CORRUPT", 15, 400, false, "Bytes fail their integrity check."},
    ErrorInfo{Code::kOutOfRange, "OUT_OF_RANGE", 11, 400, false, "A value is out of range."},
    ErrorInfo{Code::kAlreadyExists, "ALREADY_EXISTS", 6, 409, false, "It exists already."},
    ErrorInfo{Code::kNotFound, "NOT_FOUND", 5, 404, false, "It does not exist."},
    ErrorInfo{Code::kPermissionDenied, "PERMISSION_DENIED", 7, 403, false, "Not allowed."},
    ErrorInfo{Code::kIo, "IO", 13, 500, false, "The operating system refused an operation."},
};
}  // namespace

const ErrorInfo& error_info(Code code) {
  auto index = static_cast<size_t>(code);
  return index < kTable.size() ? kTable[index] : kTable[static_cast<size_t>(Code::kInternal)];
}

std::unexpected<Error> fail_errno(std::string_view doing, int errno_value) {
  char text[128];
  const char* said = strerror_r(errno_value, text, sizeof text);
  return fail(Code::kIo, std::string(doing) + ": " + said);
}

}  // namespace tie
