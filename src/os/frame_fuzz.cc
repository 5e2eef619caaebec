// Whatever a peer sends, receive_frame gives a frame within its limits or an error; it never blocks past its deadline.
#include <sys/socket.h>

#include "os/unix_socket.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  constexpr size_t kMaxBytes = 4096;
  auto pair = os::socket_pair();
  if (!pair || size > 65536) return 0;
  if (!os::write_all(pair->first.get(), {data, size}, Deadline::in_ms(100))) return 0;
  pair->first.close();
  for (;;) {
    auto frame = os::receive_frame(pair->second.get(), kMaxBytes, 0, Deadline::in_ms(100));
    if (!frame) return 0;
    tie_check(frame->payload.size() <= kMaxBytes && frame->fds.empty(), "a frame beyond its limits");
  }
}
