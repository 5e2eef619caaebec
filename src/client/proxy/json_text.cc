#include "client/proxy/json_text.h"

#include <charconv>
#include <cmath>

namespace tie::client {

size_t utf8_sequence(std::string_view text, size_t at) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  auto continues = [&](size_t i) { return i < text.size() && (byte(i) & 0xc0) == 0x80; };
  uint8_t first = byte(at);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return continues(at + 1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if (!continues(at + 1) || !continues(at + 2)) return 0;
    uint8_t second = byte(at + 1);
    bool overlong = first == 0xe0 && second < 0xa0, surrogate = first == 0xed && second > 0x9f;
    return overlong || surrogate ? 0 : 3;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if (!continues(at + 1) || !continues(at + 2) || !continues(at + 3)) return 0;
    uint8_t second = byte(at + 1);
    bool overlong = first == 0xf0 && second < 0x90, beyond = first == 0xf4 && second > 0x8f;
    return overlong || beyond ? 0 : 4;
  }
  return 0;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    size_t size = utf8_sequence(text, at);
    if (size == 0) return false;
    at += size;
  }
  return true;
}

namespace {

void append_escape(std::string& out, uint8_t c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  out += "\\u00";
  out += kHex[c >> 4];
  out += kHex[c & 15];
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    auto c = static_cast<uint8_t>(text[at]);
    if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f) {
      append_escape(out, c);
      ++at;
      continue;
    }
    size_t size = utf8_sequence(text, at);
    if (size == 0) {
      out += "\xef\xbf\xbd";
      ++at;
    } else {
      out.append(text, at, size);
      at += size;
    }
  }
  out += '"';
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "-9999.0";
    return;
  }
  char text[40];
  auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string_view digits(text, size_t(end - text));
  out += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

}  // namespace tie::client
