// Bytes of a hostile peer on a framed link: however they are cut, no crash, and no frame over the limit.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "request/frame_link/frame_link.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  auto sockets = os::socket_pair();
  if (!sockets || size == 0) return 0;
  request::FrameLink link(std::move(sockets->second), {.max_frame_bytes = 4096, .max_fds = 0});
  size_t piece = 1 + data[0];
  for (size_t at = 1; at < size; at += piece) {
    if (::send(sockets->first.get(), data + at, std::min(piece, size - at), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    auto frame = link.next();
    if (!frame) return 0;
    if (*frame && (*frame)->payload.size() > 4096) std::abort();
  }
  return 0;
}
