#include "os/log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace tie::os {
namespace {

constexpr size_t kMaxWord = 40;
constexpr size_t kMaxIdShown = 16;

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.' || c == '?';
}

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

}  // namespace

LogWord::LogWord(std::string_view word) : text_(word) {
  if (word.empty() || word.size() > kMaxWord || !std::all_of(word.begin(), word.end(), is_word_char)) text_ = "?";
}

LogId::LogId(std::string_view hex) : text_(hex.substr(0, kMaxIdShown)) {
  if (hex.empty() || !std::all_of(hex.begin(), hex.end(), is_hex)) text_ = "?";
}

LogArgument::LogArgument(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  text_ = text;
}

void write_log_line(const char* component, const char* format, std::initializer_list<LogArgument> arguments) {
  std::string line = std::string(component) + ": ";
  std::string_view rest = format;
  for (const LogArgument& argument : arguments) {
    size_t hole = rest.find("{}");
    if (hole == std::string_view::npos) break;
    line.append(rest.substr(0, hole)).append(argument.text());
    rest.remove_prefix(hole + 2);
  }
  line.append(rest).push_back('\n');
  // One write, so that lines of several threads do not mix.
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

bool line_matches_format(std::string_view line, std::string_view format) {
  for (;;) {
    size_t hole = format.find("{}");
    std::string_view fixed = format.substr(0, hole);
    if (!line.starts_with(fixed)) return false;
    line.remove_prefix(fixed.size());
    if (hole == std::string_view::npos) return line.empty();
    format.remove_prefix(hole + 2);
    size_t length = 0;
    while (length < line.size() && length < kMaxWord && is_word_char(line[length])) ++length;
    if (length == 0) return false;
    // The argument ends where the fixed text after it begins; no fixed text begins with a word character in practice,
    // but a dot may.
    while (length > 1 && !format.empty() && format[0] != '{' && !line.substr(length).starts_with(format.substr(0, 1)))
      --length;
    line.remove_prefix(length);
  }
}

}  // namespace tie::os
