#include "client/proxy/openai_error.h"

#include "client/proxy/json_text.h"

namespace tie::client {

int http_status_of(const ApiError& error) {
  if (error.http_status != 0) return error.http_status;
  // A client that went away hears nothing; who can still read this asked a proxy that is being stopped.
  if (error.code == Code::kCancelled) return 503;
  // Bytes of the node that fail their check: the caller sent nothing wrong, so the table's 400 would mislead.
  if (error.code == Code::kCorrupt || error.code == Code::kFailedPrecondition) return 502;
  return error_info(error.code).http_status;
}

std::string openai_code_of(Code code) {
  if (code == Code::kContextExceeded) return "context_length_exceeded";
  if (code == Code::kOverloaded) return "rate_limit_exceeded";
  std::string name = error_info(code).name;
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? char(c + 32) : c;
  return name;
}

namespace {

const char* type_of(int http_status) {
  if (http_status == 429) return "rate_limit_error";
  if (http_status == 401) return "authentication_error";
  if (http_status == 403) return "permission_error";
  return http_status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string error_json(const ApiError& error) {
  std::string out = R"({"error":{"message":)";
  append_json_string(out, error.message);
  out += R"(,"type":)";
  append_json_string(out, type_of(http_status_of(error)));
  out += R"(,"param":)";
  if (error.param.empty()) {
    out += "null";
  } else {
    append_json_string(out, error.param);
  }
  out += R"(,"code":)";
  append_json_string(out, error.openai_code.empty() ? openai_code_of(error.code) : error.openai_code);
  out += "}}";
  return out;
}

}  // namespace tie::client
