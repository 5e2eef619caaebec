#include "client/cli/terminal_text.h"

namespace tie::cli {

std::string for_terminal(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    bool c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
              static_cast<unsigned char>(text[i + 1]) <= 0x9f;
    if (control || c1) {
      out += "\xef\xbf\xbd";
      i += c1;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string counted(uint64_t n, std::string_view one) {
  std::string out = std::to_string(n) + " " + std::string(one);
  return n == 1 ? out : out + (one.ends_with("ss") ? "es" : "s");
}

}  // namespace tie::cli
