// Cancels gRPC streams whose peer has gone silent (stopped, not dead: a dead one ends its stream by itself), and all of
// them at shutdown. Threads: any. Owns one thread. A guard must be destroyed before its context.
#pragma once
#include <grpcpp/client_context.h>

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace tie::controller {

class Watchdog {
 public:
  class Guard {
   public:
    Guard(Watchdog& dog, grpc::ClientContext& context, int64_t silence_limit_ms);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    void heard();  // a message came

   private:
    friend class Watchdog;
    Watchdog& dog_;
    grpc::ClientContext& context_;
    int64_t limit_ms_;
    int64_t heard_ms_;
    std::list<Guard*>::iterator place_;
  };

  Watchdog();
  ~Watchdog();
  // Cancels every guarded stream and each one guarded from now on.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Guard*> guards_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace tie::controller
