#include "client/proxy/json_body.h"

#include "client/proxy/limits.h"

namespace tie::client {
namespace {

// Deepest nesting of brackets outside strings. Broken JSON may give any number; the parser judges it afterwards.
size_t nesting(std::string_view body) {
  size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<nlohmann::json> parse_json_body(std::string_view body) {
  if (body.size() > kMaxHttpBodyBytes)
    return fail(Code::kTooLarge, "the body is larger than " + std::to_string(kMaxHttpBodyBytes) + " bytes");
  if (body.empty()) return fail(Code::kBadRequest, "the body is empty; a JSON object is expected");
  if (body.starts_with("\xef\xbb\xbf"))
    return fail(Code::kBadRequest, "the body begins with a byte order mark; plain UTF-8 JSON is expected");
  // The parser takes a zero byte for the end of its input; JSON has none anywhere.
  if (body.find('\0') != std::string_view::npos)
    return fail(Code::kBadRequest, "the body is not valid JSON: it holds a zero byte");
  if (nesting(body) > kMaxJsonDepth)
    return fail(Code::kBadRequest, "the body is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  try {
    return nlohmann::json::parse(body.begin(), body.end());
  } catch (const nlohmann::json::parse_error& error) {
    return fail(Code::kBadRequest, "the body is not valid JSON: the fault is at byte " + std::to_string(error.byte));
  } catch (const nlohmann::json::exception&) {
    return fail(Code::kBadRequest, "the body is not valid JSON: a number in it is out of range");
  }
}

}  // namespace tie::client
