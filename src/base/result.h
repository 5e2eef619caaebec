// One way to report failure: Result<T> is a value or an Error; an Error is a code of the product's one table, a
// sentence for the person who reads it, and the context that callers add on the way up. Called by everyone; no threads,
// no allocation on success. Source: the error table of docs/errors.md. Untrusted input gives an Error; a broken
// invariant of our own calls tie_check.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace tie {

// Codes travel on the wire (proto/common.proto, ErrorCode): never renumber.
enum class Code : uint8_t {
  kOk = 0,
  kBadRequest = 1,       // the caller's input is wrong; do not retry
  kContextExceeded = 2,  // prompt longer than the model's context
  kModelNotFound = 3,
  kUnsupportedFeature = 4,
  kUnauthenticated = 5,  // also the one uniform error before the token is accepted
  kKeyUnknownOrExpired = 6,
  kReplayed = 7,
  kOverloaded = 8,
  kNotReady = 9,
  kRuntimeLost = 10,
  kDeadline = 11,
  kCancelled = 12,
  kInternal = 13,
  kFailedPrecondition = 14,  // messages in the wrong order
  kTooLarge = 15,            // a limit on size was passed
  kCorrupt = 16,             // stored or received bytes fail their check
  kOutOfRange = 17,
  kAlreadyExists = 18,
  kNotFound = 19,
  kPermissionDenied = 20,
  kIo = 21,  // the operating system refused; the message carries errno's text
};

struct ErrorInfo {
  Code code;
  const char* name;  // "CONTEXT_EXCEEDED"
  int grpc_status;   // grpc::StatusCode as int
  int http_status;
  bool retryable;        // the same request may succeed later, with a fresh key
  const char* sentence;  // default sentence for a person
};

// The row of the one table; unknown codes give the row of kInternal.
const ErrorInfo& error_info(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;

  // Adds what was being done: "reading weights: no such file".
  Error context(std::string_view doing) && {
    message = std::string(doing) + ": " + message;
    return std::move(*this);
  }
};

template <typename T>
using Result = std::expected<T, Error>;

[[nodiscard]] inline std::unexpected<Error> fail(Code code, std::string message) {
  return std::unexpected(Error{code, std::move(message)});
}
// The error of an errno value, with what was being done.
[[nodiscard]] std::unexpected<Error> fail_errno(std::string_view doing, int errno_value);

// Our own invariant; aborts when broken. Never for untrusted input.
inline void tie_check(bool holds, const char* what) {
  if (!holds) [[unlikely]] {
    std::fprintf(stderr, "broken invariant: %s\n", what);
    std::abort();
  }
}

}  // namespace tie

#define TIE_CONCAT_INNER(a, b) a##b
#define TIE_CONCAT(a, b) TIE_CONCAT_INNER(a, b)
// TIE_TRY(auto value, expression): takes the value out of a Result or returns its error.
#define TIE_TRY(decl, expr) TIE_TRY_IMPL(TIE_CONCAT(tie_try_, __COUNTER__), decl, expr)
#define TIE_TRY_IMPL(tmp, decl, expr)                       \
  auto tmp = (expr);                                        \
  if (!tmp) return std::unexpected(std::move(tmp.error())); \
  decl = std::move(*tmp)
// TIE_CHECK_OK(expression): returns the error of a Result<void>.
#define TIE_CHECK_OK(expr)                                                             \
  do {                                                                                 \
    if (auto tie_r = (expr); !tie_r) return std::unexpected(std::move(tie_r.error())); \
  } while (0)
