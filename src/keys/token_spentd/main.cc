// token_spentd: flags, hardening, the socket, the reaper.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/clock.h"
#include "keys/framed_server/framed_server.h"
#include "keys/token_spentd/limits.h"
#include "keys/token_spentd/spend_desk.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"

namespace {

using namespace tie;

struct Flags {
  std::string socket, tokens, state_dir;
  size_t max_tokens = spentd::kMaxTokensPerKey;
};

Result<void> serve(const Flags& flags) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(const os::Fd stop, os::termination_signal_fd());
  TIE_TRY(tokens::TokenGate gate, tokens::TokenGate::open(flags.tokens));
  TIE_TRY(keys::ReplayGuard guard, keys::ReplayGuard::open(flags.state_dir, flags.max_tokens));
  spentd::SpendDesk desk(std::move(gate), std::move(guard));
  if (const size_t lost = desk.restore(wall_clock_ms() / 1000); lost != 0)
    TIE_LOG("token_spentd", "records that cannot be restored: {}; tokens of their issuer keys are refused", lost);
  TIE_TRY(const auto server, keys::FramedServer::start(flags.socket, {spentd::kMaxConnections, std::nullopt},
                                                       [&desk](int socket) { return serve_spend(desk, socket); }));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  os::notify_ready();
  while (!os::wait_readable(stop.get(), Deadline::in_ms(spentd::kReapMs))) desk.reap(wall_clock_ms() / 1000);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Remembers which one-time tokens were spent."};
  app.add_option("--socket", flags.socket, "token-spend.sock to serve: helpers only")->required();
  app.add_option("--tokens", flags.tokens, "folder with the token issuer's file and this node's context")->required();
  app.add_option("--state-dir", flags.state_dir, "folder in memory for the records")->required();
  app.add_option("--max-tokens", flags.max_tokens, "remembered for one key of the issuer; more are refused")
      ->check(CLI::Range(1, 100'000'000));
  CLI11_PARSE(app, argc, argv);
  auto outcome = serve(flags);
  if (outcome) return 0;
  TIE_LOG("token_spentd", "ended: {}", outcome.error().code);  // the sentence below may name paths
  std::fprintf(stderr, "token_spentd: %s\n", outcome.error().message.c_str());
  return 1;
}
