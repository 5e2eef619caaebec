// cache_stored: flags, hardening, the store, the socket. Memory only: nothing here opens a file.
#include <malloc.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cache/store/store_server.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "os/unix_socket.h"

namespace {

using namespace tie;

Result<void> run(const std::string& socket, const cache::StoreLimits& limits) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(os::Fd stop, os::termination_signal_fd());
  rlimit files{.rlim_cur = limits.max_descriptors + 1024, .rlim_max = limits.max_descriptors + 1024};
  setrlimit(RLIMIT_NOFILE, &files);  // best effort: with fewer, puts fail with a clear error
  mallopt(M_ARENA_MAX, 1);  // entries are made on one thread and freed on another: arenas of their own would only grow
  TIE_TRY(os::Fd listener, os::listen_unix(socket));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  cache::Store store(limits);
  TIE_LOG("cache_stored", "holds up to {} MB", limits.capacity_bytes >> 20);
  os::notify_ready();
  return cache::serve_store(store, listener.get(), stop.get());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Keeps conversations' KV caches as ciphertext, in memory only. The keys are on the users' devices.",
               "cache_stored");
  std::string socket;
  uint64_t capacity_mib = 1024;
  app.add_option("--socket", socket, "where to listen")->required();
  app.add_option("--capacity-mib", capacity_mib, "memory for entries")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  cache::StoreLimits limits;
  limits.capacity_bytes = capacity_mib << 20;
  if (auto done = run(socket, limits); !done) {
    std::fprintf(stderr, "cache_stored: %s\n", done.error().message.c_str());
    return 1;
  }
  return 0;
}
