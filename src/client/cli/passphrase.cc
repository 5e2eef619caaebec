#include "client/cli/passphrase.h"

#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>

#include <iostream>

namespace tie::cli {
namespace {

// Without an echo, which is restored whatever happens.
class SilentTerminal {
 public:
  SilentTerminal() {
    tcgetattr(STDIN_FILENO, &before_);
    termios silent = before_;
    silent.c_lflag &= ~tcflag_t(ECHO);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
  }
  ~SilentTerminal() { tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_); }

 private:
  termios before_{};
};

Result<SecretBytes> ask(const std::string& question) {
  fmt::print(stderr, "{}: ", question);
  SilentTerminal silent;
  std::string line;
  bool read = bool(std::getline(std::cin, line));
  fmt::print(stderr, "\n");
  if (!read || line.empty()) return fail(Code::kBadRequest, "no passphrase was given");
  SecretBytes out = SecretBytes::copy_of(as_bytes(line));
  secure_zero(line);
  return out;
}

}  // namespace

Result<SecretBytes> passphrase_for(const std::string& path, const std::string& given) {
  if (!given.empty()) return SecretBytes::copy_of(as_bytes(given));
  if (::isatty(STDIN_FILENO) == 0)
    return fail(Code::kBadRequest, "the turn keys' file needs a passphrase: set TIE_TURN_KEYS_PASSPHRASE");
  bool exists = ::access(path.c_str(), F_OK) == 0;
  TIE_TRY(SecretBytes words, ask((exists ? "Passphrase of " : "New passphrase for ") + path));
  if (exists) return words;
  TIE_TRY(SecretBytes again, ask("Again"));
  if (!equal_constant_time(words.view(), again.view())) return fail(Code::kBadRequest, "the two passphrases differ");
  return words;
}

}  // namespace tie::cli
