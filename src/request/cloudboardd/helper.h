// One cb_jobhelper as cloudboardd sees it: a framed connection that started it, its Warm message, its pidfd. Belongs to
// the event loop's thread. Connecting is what starts the process (Accept=yes), so a connection made early is a
// prewarmed helper. Untrusted input: everything it says, once it has parsed a request.
#pragma once
#include <memory>
#include <string>

#include "jobhelper.pb.h"
#include "request/cloudboardd/admission.h"
#include "request/cloudboardd/event_loop.h"
#include "request/frame_link/frame_link.h"

namespace tie::request::cloudboard {

class Helper;

// Whoever holds a helper at the moment: the pool, then one request. Calls come from the loop; the owner may let go of
// the helper in them.
class HelperOwner {
 public:
  virtual ~HelperOwner() = default;
  virtual void helper_warm(Helper&) {}
  virtual void helper_said(Helper&, v1::FromHelper&) {}
  virtual void helper_took_input(Helper&) {}  // part of what was queued has been sent
  virtual void helper_lost(Helper&) = 0;      // closed, or it broke the protocol
};

class Helper : public std::enable_shared_from_this<Helper> {
 public:
  // Does not wait: a full queue of the listener is an error (kDeadline), as is a missing socket (kIo).
  static Result<std::shared_ptr<Helper>> connect(EventLoop& loop, const std::string& socket, HelperOwner* owner);
  ~Helper();

  void set_owner(HelperOwner* owner) { owner_ = owner; }
  bool warm() const { return pidfd_.valid(); }
  int64_t connected_ms() const { return connected_ms_; }
  // On failure the helper is lost: the owner is told from the loop, not from in here.
  void send(const v1::ToHelper& message, std::span<const int> fds = {});
  size_t queued_bytes() const { return link_.queued_bytes(); }
  void pause_reading(bool pause);
  // Ends the connection, which ends the process.
  void close();
  os::Fd take_pidfd() { return std::move(pidfd_); }

 private:
  Helper(EventLoop& loop, FrameLink link, HelperOwner* owner);
  Result<void> watch();
  void unwatch();
  void on_events(uint32_t events);
  void read_all();
  Result<void> on_frame(os::Frame& frame);
  void want_write();
  void lose();

  EventLoop& loop_;
  FrameLink link_;
  HelperOwner* owner_;
  os::Fd pidfd_;
  EventLoop::Id watch_id_ = 0;
  bool paused_ = false;
  int64_t connected_ms_;
};

// Sees to it that a helper whose request has ended exits, and keeps the request's admission slot until it has.
// Closes the connection; kills by pidfd after `grace_ms`.
void reap(EventLoop& loop, std::shared_ptr<Helper> helper, Admission::Slot slot, int64_t grace_ms);

}  // namespace tie::request::cloudboard
