// cb_jobhelper: ends the encryption of one request on the node. Started per connection (fd 3) by the launcher or
// systemd, waits warm, serves one request, exits. Source: spec, "On-Node Request Termination".
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "crypto/library_start.h"
#include "crypto/request_open.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "request/cb_jobhelper/helper.h"
#include "request/cb_jobhelper/token_check.h"

namespace {

struct Options {
  std::string app_socket, decap_socket;
  std::string tokens, spend_socket;  // together, for a node with one-time tokens on
};

// A few flags: a command-line library would cost more than this process's whole start.
bool parse(int argc, char** argv, Options& out) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--app-socket") == 0)
      out.app_socket = argv[i + 1];
    else if (std::strcmp(argv[i], "--decap-socket") == 0)
      out.decap_socket = argv[i + 1];
    else if (std::strcmp(argv[i], "--tokens") == 0)
      out.tokens = argv[i + 1];
    else if (std::strcmp(argv[i], "--spend-socket") == 0)
      out.spend_socket = argv[i + 1];
    else
      return false;
  }
  return argc % 2 == 1 && !out.app_socket.empty() && !out.decap_socket.empty() &&
         out.tokens.empty() == out.spend_socket.empty();
}

// nullopt: the folder has no issuer, tokens are off.
tie::Result<std::optional<tie::tokens::TokenGate>> open_gate(const std::string& folder) {
  if (folder.empty()) return std::nullopt;
  auto gate = tie::tokens::TokenGate::open(folder);
  if (!gate && gate.error().code == tie::Code::kNotFound) return std::nullopt;
  if (!gate) return std::unexpected(gate.error());
  return std::move(*gate);
}

tie::Result<void> run(const Options& options) {
  using namespace tie;
  namespace jobhelper = request::jobhelper;
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(os::Fd connection, os::activation_connection());
  TIE_TRY(os::Fd pidfd, os::pidfd_of_self());
  TIE_TRY(std::optional<tokens::TokenGate> gate, open_gate(options.tokens));
  TIE_TRY(auto connections, jobhelper::connect_warm(std::move(connection), options.app_socket, options.decap_socket,
                                                    gate ? options.spend_socket : ""));
  crypto::prepare_opening();
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kPerRequest));
  TIE_CHECK_OK(jobhelper::announce(connections.cloudboard.get(), pidfd.get()));
  pidfd.close();
  jobhelper::TokenVerifier verifier;
  if (gate) verifier = jobhelper::token_check(std::move(*gate), connections.spend.get());
  return jobhelper::serve(std::move(connections), std::move(verifier));
}

}  // namespace

int main(int argc, char** argv) {
  tie::crypto::start_library_for_one_request();
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(
        stderr,
        "usage: cb_jobhelper --app-socket PATH --decap-socket PATH [--tokens FOLDER --spend-socket PATH]   (one "
        "connection as fd 3)\n");
    return 2;
  }
  auto result = run(options);
  if (!result) TIE_LOG("cb_jobhelper", "ended with {}", result.error().code);
  ::_exit(result ? 0 : 1);
}
