#include "client/proxy/schema_text.h"

#include <functional>
#include <nlohmann/json.hpp>

namespace tie::client {
namespace {

// Walks JSON that is known to be well formed; at its end it stays at its end.
class Walk {
 public:
  explicit Walk(std::string_view text) : text_(text) {}

  // Each member of the object, or each element of the array (with an empty key), that starts here. False for any other
  // value.
  bool each(char open, const std::function<void(std::string_view key, std::string_view value)>& visit) {
    space();
    if (peek() != open) return false;
    for (++at_;;) {
      space();
      std::string_view key;
      if (peek() == '}' || peek() == ']' || at_ >= text_.size()) break;
      if (open == '{') {
        key = value();
        space();
        ++at_;  // the colon
      }
      visit(key, value());
      space();
      if (peek() != ',') break;
      ++at_;
    }
    return true;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  void string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    ++at_;
  }

  // Passes over one value and gives its text.
  std::string_view value() {
    space();
    size_t begin = at_, depth = 0;
    do {
      char c = peek();
      if (c == '"') {
        string();
      } else if (c == '{' || c == '[') {
        ++depth, ++at_;
      } else if (c == '}' || c == ']') {
        --depth, ++at_;
      } else if (depth > 0) {
        ++at_;
      } else {
        at_ = std::min(text_.find_first_of(",]} \t\r\n", at_), text_.size());
      }
    } while (depth > 0 && at_ < text_.size());
    return text_.substr(begin, at_ - begin);
  }

  std::string_view text_;
  size_t at_ = 0;
};

bool is_key(std::string_view key, std::string_view wanted) {
  if (key.find('\\') == std::string_view::npos)
    return key.size() == wanted.size() + 2 && key.substr(1, wanted.size()) == wanted;
  auto parsed = nlohmann::json::parse(key, nullptr, false);
  return parsed.is_string() && parsed.get_ref<const std::string&>() == wanted;
}

// The last one of that name, as the parser takes it; empty when there is none.
std::string_view member(std::string_view object, std::string_view name) {
  std::string_view found;
  Walk(object).each('{', [&](std::string_view key, std::string_view value) {
    if (is_key(key, name)) found = value;
  });
  return found;
}

bool is_schema(std::string_view text) {
  return text.starts_with('{');
}

}  // namespace

void keep_schema_texts(std::string_view body, v1::InferenceRequest& request) {
  if (request.tools_size() == 0 && request.response_format().kind() != v1::ResponseFormat::JSON_SCHEMA) return;
  int index = 0;
  Walk(member(body, "tools")).each('[', [&](std::string_view, std::string_view tool) {
    if (index >= request.tools_size()) return;
    std::string_view schema = member(member(tool, "function"), "parameters");
    if (is_schema(schema)) request.mutable_tools(index)->set_parameters_json(std::string(schema));
    ++index;
  });
  if (request.response_format().kind() != v1::ResponseFormat::JSON_SCHEMA) return;
  for (std::string_view schema : {member(member(member(body, "response_format"), "json_schema"), "schema"),
                                  member(body, "guided_json"), member(member(body, "structured_outputs"), "json")})
    if (is_schema(schema)) request.mutable_response_format()->set_schema_or_grammar(std::string(schema));
}

}  // namespace tie::client
