#include "client/cli/interrupts.h"

#include <signal.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "client/cli/command.h"

namespace tie::cli {

Interrupts& Interrupts::start() {
  return *new Interrupts;  // its thread never ends
}

Interrupts::Interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([this] { wait(); }).detach();
}

void Interrupts::wait() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  for (;;) {
    int signal = 0;
    if (::sigwait(&set, &signal) != 0) continue;
    std::lock_guard lock(mutex_);
    if (!handler_) ::_exit(kExitInterrupted);
    handler_();
  }
}

Interrupts::Scope::Scope(Interrupts& owner, std::function<void()> handler) : owner_(owner) {
  std::lock_guard lock(owner_.mutex_);
  before_ = std::exchange(owner_.handler_, std::move(handler));
}

Interrupts::Scope::~Scope() {
  std::lock_guard lock(owner_.mutex_);
  owner_.handler_ = std::move(before_);
}

}  // namespace tie::cli
