// One thread that notices when a watched connection is closed by its peer. Any thread may add and remove.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "os/fd.h"

namespace tie::client {

class ClientWatcher {
 public:
  ClientWatcher();
  ~ClientWatcher();
  // Calls `gone` at most once while the handle lives; never after the handle has been released.
  std::shared_ptr<void> watch(int socket, std::function<void()> gone);
  // As if every watched client had gone.
  void all_gone();

 private:
  void run();
  void tell(uint64_t id);
  void forget(uint64_t id);

  struct Watched {
    int socket;
    std::function<void()> gone;
  };
  os::Fd epoll_, wake_;
  std::mutex mutex_;
  std::map<uint64_t, Watched> watched_;
  uint64_t next_id_ = 1;
  std::thread thread_;
};

}  // namespace tie::client
