#include "client/proxy/base64.h"

#include <cstdint>

namespace tie::client {
namespace {

int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    int digit = digit_of(c);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | uint32_t(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += char(bits >> count & 0xff);
    }
  }
  return out;
}

}  // namespace tie::client
