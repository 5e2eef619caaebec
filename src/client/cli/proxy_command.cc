// `tie proxy`: the OpenAI-compatible proxy in the foreground.
#include <fmt/format.h>
#include <poll.h>

#include <CLI/CLI.hpp>
#include <charconv>

#include "client/cli/command.h"
#include "client/proxy/proxy.h"
#include "os/process.h"

namespace tie::cli {
namespace {

struct ProxyFlags {
  NodeFlags node;
  std::string listen = "127.0.0.1:8123";
  std::string api_key;
};

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
  TIE_TRY(os::Fd stop, os::termination_signal_fd());  // before gRPC starts its threads
  TIE_TRY(auto session, open_session(flags.node));    // finds the policy before the environment is emptied
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(auto proxy, client::RunningProxy::start(session, {.http = http, .api_key = flags.api_key}));
  auto node = session->node();
  fmt::print("proxy on http://{}/v1, node {}\n", flags.listen, flags.node.node);
  fmt::print("{}\n", node ? (*node)->summary() : "the node does not answer yet: " + node.error().message);
  std::fflush(stdout);
  os::notify_ready();
  pollfd wait{.fd = stop.get(), .events = POLLIN};
  while (::poll(&wait, 1, -1) <= 0) {
  }
  proxy->stop();
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
