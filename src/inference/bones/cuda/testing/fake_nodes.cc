#include "inference/bones/cuda/testing/fake_nodes.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

namespace tie::bones::cuda {
namespace {

constexpr const char* kControlNode = "/dev/nvidiactl";
constexpr int kMostNodes = 32;
constexpr timeval kAnswerTime{.tv_sec = 30, .tv_usec = 0};

std::mutex lock;

// -1 where there is no such node.
int open_node(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kAnswerTime, sizeof kAnswerTime);
  if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

// The answer, and the descriptor that came with it or -1.
bool receive(int socket, FakeNodeAnswer& answer, int& descriptor) {
  iovec part{&answer, sizeof answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof answer) return false;
  descriptor = -1;
  if (const cmsghdr* passed = CMSG_FIRSTHDR(&message); passed != nullptr && passed->cmsg_type == SCM_RIGHTS)
    std::memcpy(&descriptor, CMSG_DATA(passed), sizeof descriptor);
  return true;
}

}  // namespace

FakeNodes* FakeNodes::here() {
  static FakeNodes* const nodes = [] {
    struct stat control{};
    return ::stat(kControlNode, &control) == 0 && S_ISSOCK(control.st_mode) ? new FakeNodes : nullptr;
  }();
  return nodes;
}

FakeNodes::FakeNodes() {
  for (int n = 0; n < kMostNodes && count_ < kMost; ++n) {
    const int socket = open_node(("/dev/nvidia" + std::to_string(n)).c_str());
    if (socket < 0) continue;
    numbers_[count_] = n;
    sockets_[count_++] = socket;
  }
}

int FakeNodes::exchange(int ordinal, const char* what, size_t bytes, uint64_t& memory, bool answered) {
  if (ordinal < 0 || ordinal >= count_) return -1;
  FakeNodeRequest request{{}, bytes, memory};
  std::snprintf(request.what, sizeof request.what, "%s", what);
  std::lock_guard guard(lock);
  FakeNodeAnswer answer{1, 0};
  int descriptor = -1;
  if (::send(sockets_[ordinal], &request, sizeof request, MSG_NOSIGNAL) != sizeof request || !answered ||
      !receive(sockets_[ordinal], answer, descriptor) || answer.refused != 0)
    return -1;
  memory = answer.memory;
  return descriptor;
}

int FakeNodes::alloc(int ordinal, size_t bytes, uint64_t& memory) {
  memory = 0;
  return exchange(ordinal, "alloc", bytes, memory, true);
}
int FakeNodes::attach(int ordinal, size_t bytes, uint64_t memory) {
  return exchange(ordinal, "attach", bytes, memory, true);
}
void FakeNodes::tell(int ordinal, const char* what, size_t bytes, uint64_t memory) {
  const bool answered = std::strcmp(what, "free") == 0 || std::strcmp(what, "detach") == 0;
  (void)exchange(ordinal, what, bytes, memory, answered);
}

}  // namespace tie::bones::cuda
