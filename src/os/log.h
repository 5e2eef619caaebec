// The one logger of the node's processes: a component, a constant format string, and arguments that cannot carry a
// user's text. A line goes to stderr; the launcher (or the journal) collects it. The format strings of a program lie in
// its ELF section `tie_log`, so the launcher reads from the measured program which lines it may write, and drops every
// other line: a process that was taken over cannot print a prompt into the operator's log. Threads: any. Never blocks
// longer than a write to a pipe.
//
//   TIE_LOG("cloudboardd", "listening on port {}", port);
//   TIE_LOG("cloudboardd", "request {} ended with {}", LogId(request_id), LogWord(error_info(code).name));
#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tie::os {

// A word of the program's own vocabulary (an error name, a state): letters, digits, '_', '-', '.', at most 40; others
// print as "?".
class LogWord {
 public:
  explicit LogWord(std::string_view word);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A public identifier: lower-case hex of a digest or a random id; the first 16 digits are printed, other text prints as
// "?".
class LogId {
 public:
  explicit LogId(std::string_view hex);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class LogArgument {
 public:
  template <std::integral T>
  LogArgument(T value) : text_(std::to_string(value)) {}
  LogArgument(double value);
  LogArgument(Code code) : LogArgument(LogWord(error_info(code).name)) {}
  LogArgument(const LogWord& word) : text_(word.text()) {}
  LogArgument(const LogId& id) : text_(id.text()) {}
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// "component: text with arguments". The function behind the macro; do not call it with a format that is not a literal.
void write_log_line(const char* component, const char* format, std::initializer_list<LogArgument> arguments);

// Whether `line` (without newline) could have been written with `format`, an entry of the section `tie_log`:
// "component: format".
bool line_matches_format(std::string_view line, std::string_view format);

}  // namespace tie::os

// Not inside templates or inline functions: their section cannot hold the string.
#define TIE_LOG(component, format, ...)                                                                          \
  do {                                                                                                           \
    static const char tie_log_entry[] __attribute__((section("tie_log"), used, retain)) = component ": " format; \
    (void)tie_log_entry;                                                                                         \
    ::tie::os::write_log_line(component, format, {__VA_ARGS__});                                                 \
  } while (0)
