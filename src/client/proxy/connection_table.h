// Who is connected to the proxy, and who may be sent away to make room. A connection that waits (nothing has come yet,
// or only a part of a request's headers) gives its place to a newcomer, the one that has waited longest first; one that
// is being served keeps it. So clients that hold connections open and say nothing cannot keep others out. Threads: any.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>

namespace tie::client {

class ConnectionTable {
 public:
  explicit ConnectionTable(size_t limit) : limit_(limit) {}

  // A connection's number, drawn where connections are accepted, in their order: the threads that serve them begin in
  // any.
  uint64_t arrive();

  // One connection; lives on the thread that serves it.
  struct Place {
    int socket = -1;
    uint64_t arrival = 0;
    uint64_t waiting = 0;    // its number among those that wait; 0: it does not
    bool sent_away = false;  // its socket is shut down
  };

  // Takes a place, as one that has waited since its arrival, so perhaps only to be sent away at once; `place` must
  // outlive leave(). False: every place is being served.
  bool enter(Place& place);
  // Waits for its next request from now on.
  void wait(Place& place);
  // A request has come. False: it was sent away before.
  bool serve(Place& place);
  // Before the socket is closed.
  void leave(Place& place);

  // How many are being served at this moment.
  size_t being_served();

 private:
  void stop_waiting(Place& place);

  const size_t limit_;
  std::mutex mutex_;
  std::map<uint64_t, Place*> waiting_;  // the longest first
  uint64_t next_ = 1;
  size_t taken_ = 0;  // without those that were sent away and are about to leave
};

}  // namespace tie::client
