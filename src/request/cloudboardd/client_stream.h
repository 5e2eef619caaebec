// One InvokeWorkload call as a request sees it: gRPC behind it in the daemon, a recorder in tests. Calls come from the
// event loop's thread and never wait; calls after finish() do nothing.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "cloudboard.pb.h"

namespace tie::request::cloudboard {

class ClientStream {
 public:
  virtual ~ClientStream() = default;
  virtual void read_next() = 0;  // one more message, please; told by Request::on_message
  virtual void send(v1::InvokeResponse message) = 0;
  virtual size_t queued_bytes() const = 0;  // sent and not yet taken by the transport
  virtual int64_t stalled_ms()
      const = 0;  // how long the transport has been taking nothing of it; 0 when nothing is queued
  // Ends the call once everything queued is out; at once when `drop_queued`, because the client does not take it.
  virtual void finish(const Error& status, bool drop_queued) = 0;  // code kOk: success
};

}  // namespace tie::request::cloudboard
