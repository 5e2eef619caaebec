// `tie proxy`: the OpenAI-compatible proxy in the foreground.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "client/cli/command.h"
#include "client/cli/passphrase.h"
#include "client/proxy/limits.h"
#include "client/proxy/proxy.h"
#include "client/turn_keys/turn_key_file.h"
#include "os/open_files.h"
#include "os/process.h"

namespace tie::cli {
namespace {

struct ProxyFlags {
  NodeFlags node;
  std::string listen = "127.0.0.1:8123";
  std::string api_key;
  std::string turn_keys;  // file; empty: memory
  std::string passphrase;
  bool no_cache = false;
};

constexpr int kSaveEveryMs = 2000;
constexpr uint64_t kLeastOpenFiles = 128;

// The proxy's turn keys, and their file when one was asked for.
struct TurnKeys {
  std::shared_ptr<client::TurnKeyTable> table;
  std::optional<client::TurnKeyFile> file;
  uint64_t saved_changes = 0;

  // A file that cannot be written is told once and tried again: answers go on.
  void save() {
    if (!file || table->changes() == saved_changes) return;
    uint64_t changes = table->changes();
    auto saved = file->save(*table);
    if (!saved && !complained_) report(saved.error());
    complained_ = !saved;
    if (saved) saved_changes = changes;
  }

 private:
  bool complained_ = false;
};

Result<TurnKeys> open_turn_keys(const ProxyFlags& flags) {
  TurnKeys out;
  if (flags.no_cache) return out;
  out.table = std::make_shared<client::TurnKeyTable>();
  if (flags.turn_keys.empty()) return out;
  TIE_TRY(SecretBytes words, passphrase_for(flags.turn_keys, flags.passphrase));
  TIE_TRY(out.file, client::TurnKeyFile::open(flags.turn_keys, words.view(), *out.table));
  out.saved_changes = out.table->changes();
  return out;
}

Result<client::HttpServerOptions> parse_listen(const std::string& listen) {
  size_t colon = listen.rfind(':');
  client::HttpServerOptions out;
  const char* end = listen.data() + listen.size();
  bool parsed =
      colon != std::string::npos && colon > 0 && std::from_chars(listen.data() + colon + 1, end, out.port).ptr == end;
  if (!parsed || out.port < 1 || out.port > 65535)
    return fail(Code::kBadRequest, "--listen must be ADDRESS:PORT, not '" + listen + "'");
  out.host = listen.substr(0, colon);
  if (out.host.starts_with('[') && out.host.ends_with(']')) out.host = out.host.substr(1, out.host.size() - 2);
  return out;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Result<void> serve(const ProxyFlags& flags) {
  TIE_TRY(client::HttpServerOptions http, parse_listen(flags.listen));
  if (!is_loopback(http.host) && flags.api_key.empty()) {
    return fail(Code::kBadRequest,
                "the proxy holds your requests in clear, so it listens beyond this machine only with --api-key");
  }
  // Each connection is one; what the rest of the program has open is far below the other half.
  TIE_TRY(uint64_t open_files, os::require_open_files(kLeastOpenFiles, "the proxy"));
  http.max_connections = int(std::min<uint64_t>(uint64_t(http.max_connections), open_files / 2));
  TIE_TRY(os::Fd stop, os::termination_signal_fd());  // before gRPC starts its threads
  TIE_TRY(auto session, open_session(flags.node));    // finds the policy before the environment is emptied
  TIE_TRY(TurnKeys turn_keys, open_turn_keys(flags));
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(auto proxy,
          client::RunningProxy::start(session, {.http = http, .api_key = flags.api_key, .turn_keys = turn_keys.table}));
  auto node = session->node();
  fmt::print("proxy on http://{}/v1, node {}\n", flags.listen, flags.node.node);
  fmt::print("{}\n", node ? (*node)->summary() : "the node does not answer yet: " + node.error().message);
  std::fflush(stdout);
  os::notify_ready();
  pollfd wait{.fd = stop.get(), .events = POLLIN};
  while (::poll(&wait, 1, turn_keys.file ? kSaveEveryMs : -1) <= 0) turn_keys.save();
  signalfd_siginfo first{};
  (void)!::read(stop.get(), &first, sizeof first);
  proxy->drain(Deadline::in_ms(client::kDrainMs), [&] { return ::poll(&wait, 1, 0) > 0; });  // a second signal hurries
  proxy->stop();
  turn_keys.save();
  return {};
}

}  // namespace

void add_proxy_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ProxyFlags>();
  CLI::App* command =
      app.add_subcommand("proxy", "serve OpenAI's API on this machine and seal every request to the node");
  add_node_flags(*command, flags->node);
  command->add_option("--listen", flags->listen, "ADDRESS:PORT to serve on")->capture_default_str();
  command->add_option("--api-key", flags->api_key, "ask clients for this key (better: set TIE_API_KEY)")
      ->envname("TIE_API_KEY");
  auto* turn_keys = command->add_option(
      "--turn-keys", flags->turn_keys,
      "keep conversations' keys in this file, sealed under the passphrase in TIE_TURN_KEYS_PASSPHRASE, "
      "else asked for (default: in memory, until the proxy ends)");
  // No flag shows a passphrase to every other program of the machine.
  command->add_option("--turn-keys-passphrase", flags->passphrase, "its passphrase: set TIE_TURN_KEYS_PASSPHRASE")
      ->envname("TIE_TURN_KEYS_PASSPHRASE")
      ->group("");
  command->add_flag("--no-cache", flags->no_cache, "send no turn keys: the node computes every history again")
      ->excludes(turn_keys);
  command->footer(
      "Point an OpenAI client at it:\n  client = OpenAI(base_url=\"http://127.0.0.1:8123/v1\", "
      "api_key=\"unused\")\n\n" +
      std::string(kExitCodesHelp));
  command->callback([flags, &exit_code] {
    auto served = serve(*flags);
    exit_code = served ? int(kExitOk) : report(served.error());
  });
}

}  // namespace tie::cli
