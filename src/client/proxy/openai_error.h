// Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}} with the HTTP status of the product's one
// table. Pure functions. Source: docs/errors.md; OpenAI's API description, schema ErrorResponse.
#pragma once
#include <string>

#include "base/result.h"

namespace tie::client {

struct ApiError {
  Code code = Code::kBadRequest;
  std::string message;
  std::string param;        // empty: null
  std::string openai_code;  // empty: openai_code_of(code)
  int http_status = 0;      // 0: the table's
};

inline ApiError api_error(const Error& error, std::string param = {}) {
  if (error.code == Code::kCancelled)
    return {error.code, "The proxy was stopped before the answer was complete; ask again when it is back.", {}, {}, 0};
  return {error.code, error.message, std::move(param), {}, 0};
}

int http_status_of(const ApiError& error);
// "context_length_exceeded", "model_not_found", … the table's name in lower case where OpenAI has no word of its own.
std::string openai_code_of(Code code);
std::string error_json(const ApiError& error);

}  // namespace tie::client
