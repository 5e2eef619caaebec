// Ctrl-C as a call on a thread of its own, so that a handler may take locks. Starts before any other thread, lives
// until the program ends.
#pragma once
#include <functional>
#include <mutex>

namespace tie::cli {

class Interrupts {
 public:
  // Once a program. Without a handler Ctrl-C ends the program with 130.
  static Interrupts& start();
  // `handler` runs at each Ctrl-C while the returned scope lives.
  class Scope {
   public:
    Scope(Interrupts& owner, std::function<void()> handler);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupts& owner_;
    std::function<void()> before_;
  };

 private:
  Interrupts();
  void wait();
  std::mutex mutex_;
  std::function<void()> handler_;
};

}  // namespace tie::cli
