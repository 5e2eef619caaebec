#include "client/proxy/client_watcher.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace tie::client {
namespace {
constexpr uint64_t kWakeId = 0;
}

ClientWatcher::ClientWatcher() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC)) {
  tie_check(epoll_.get() >= 0 && wake_.get() >= 0, "epoll and eventfd can be made");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeId}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  thread_ = std::thread([this] { run(); });
}

ClientWatcher::~ClientWatcher() {
  uint64_t one = 1;
  tie_check(::write(wake_.get(), &one, sizeof one) == sizeof one, "an eventfd takes a one");
  thread_.join();
}

std::shared_ptr<void> ClientWatcher::watch(int socket, std::function<void()> gone) {
  std::lock_guard lock(mutex_);
  uint64_t id = next_id_++;
  watched_[id] = {socket, std::move(gone)};
  epoll_event event{.events = EPOLLRDHUP | EPOLLONESHOT, .data = {.u64 = id}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event);
  return {this, [id](ClientWatcher* watcher) { watcher->forget(id); }};
}

void ClientWatcher::forget(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto found = watched_.find(id);
  if (found == watched_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.socket, nullptr);
  watched_.erase(found);
}

void ClientWatcher::tell(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto found = watched_.find(id);
  if (found != watched_.end()) found->second.gone();
}

void ClientWatcher::all_gone() {
  std::lock_guard lock(mutex_);
  for (auto& [id, watched] : watched_) watched.gone();
}

void ClientWatcher::run() {
  for (;;) {
    epoll_event events[32];
    int count = ::epoll_wait(epoll_.get(), events, 32, -1);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWakeId) return;
      tell(events[i].data.u64);
    }
  }
}

}  // namespace tie::client
