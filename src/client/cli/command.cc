#include "client/cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cctype>

#include "client/token_wallet/token_wallet.h"
#include "os/fd.h"

namespace tie::cli {

const char* const kExitCodesHelp =
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 node not reachable or not ready,\n"
    "  4 the policy refuses the node, 5 the answer was cut, 130 interrupted.";

void add_node_flags(CLI::App& command, NodeFlags& flags) {
  command.add_option("--node", flags.node, "HOST:PORT of the node")->envname("TIE_NODE")->capture_default_str();
  command
      .add_option("--policy", flags.policy,
                  "policy file (default: ~/.config/tie/policy.toml, else the one of this build)")
      ->envname("TIE_POLICY");
  command
      .add_option("--token-issuer", flags.token_issuer,
                  "https://HOST of the issuer of one-time tokens, for a node that asks for them")
      ->envname("TIE_TOKEN_ISSUER");
  command.add_option("--token-key-file", flags.token_key_file, "file with your API key for the issuer")
      ->envname("TIE_TOKEN_KEY_FILE");
  command
      .add_option(
          "--credential-file", flags.credential_file,
          "file with a line that is sent in clear with every request: its holders share the node's cache fairly "
          "with others, and the node can tell that their requests belong together (default: none)")
      ->envname("TIE_CREDENTIAL_FILE");
}

namespace {

constexpr size_t kMaxKeyFileBytes = 1026;  // a key and its line's end

// A file's one line, without its end.
Result<std::string> read_key_file(const std::string& path) {
  TIE_TRY(Bytes text, os::read_file(path, kMaxKeyFileBytes));
  std::string key = to_string(text);
  while (!key.empty() && std::isspace(static_cast<unsigned char>(key.back()))) key.pop_back();
  return key;
}

Result<std::shared_ptr<client::TokenSource>> open_wallet(const NodeFlags& flags) {
  client::WalletOptions options{.issuer_url = flags.token_issuer, .batch = flags.token_batch};
  if (!flags.token_key_file.empty()) {
    TIE_TRY(options.api_key, read_key_file(flags.token_key_file));
  }
  TIE_TRY(std::shared_ptr<client::TokenSource> wallet, client::TokenWallet::open(std::move(options)));
  return wallet;
}

}  // namespace

Result<std::shared_ptr<client::Session>> open_session(const NodeFlags& flags) {
  client::SessionOptions options;
  options.node = flags.node;
  options.policy_path = flags.policy;
  if (!flags.credential_file.empty()) {
    TIE_TRY(options.credential, read_key_file(flags.credential_file));
    if (!client::is_credential(options.credential))
      return fail(Code::kBadRequest,
                  flags.credential_file + " must hold one line of 1 to 1024 printable ASCII characters");
  }
  if (!flags.token_issuer.empty()) {
    TIE_TRY(options.tokens, open_wallet(flags));
  }
  return client::Session::open(std::move(options));
}

Result<std::string> choose_model(const client::VerifiedNode& node, const std::string& wanted) {
  if (node.models.empty())
    return fail(Code::kModelNotFound, "this node serves no model; add one on it with: tie model add FILE.gguf");
  if (wanted.empty()) return node.models.front().name;
  if (node.find_model(wanted)) return wanted;
  std::string served;
  for (const auto& model : node.models) served += " " + model.name;
  return fail(Code::kModelNotFound, "this node does not serve '" + wanted + "'; it serves:" + served);
}

namespace {

int exit_code_of(Code code) {
  switch (code) {
    case Code::kNotReady:
    case Code::kOverloaded:
      return kExitNotReady;
    case Code::kPermissionDenied:
      return kExitRefused;
    case Code::kCancelled:
      return kExitInterrupted;
    default:
      return kExitFailed;
  }
}

const char* next_step(Code code) {
  switch (code) {
    case Code::kPermissionDenied:
      return "\n  `tie keys` shows why. If you have just built or changed the node, `./dev build` writes a policy for "
             "it;\n"
             "  another build's release is trusted by: tie policy pin --release HEX";
    case Code::kKeyUnknownOrExpired:
      return "\n  try again; if it stays so, this machine's clock may be wrong";
    case Code::kOverloaded:
      return "\n  try again shortly";
    default:
      return "";
  }
}

}  // namespace

int report(const Error& error) {
  fmt::print(stderr, "tie: {}{}\n", error.message, next_step(error.code));
  return exit_code_of(error.code);
}

}  // namespace tie::cli
