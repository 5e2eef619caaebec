// Unix stream sockets: listen, accept, connect, pass descriptors, ask who the peer is. Paths are at most 107 bytes. No
// abstract sockets.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "os/fd.h"

namespace tie::os {

constexpr size_t kMaxSocketPathBytes = 107;
constexpr size_t kMaxPassedFds = 8;

// Removes a stale socket at `path` first; creates no directory. mode: permission bits of the socket.
Result<Fd> listen_unix(const std::string& path, int backlog = 128, int mode = 0660);
Result<Fd> accept_unix(int listener, Deadline deadline);
Result<Fd> connect_unix(const std::string& path, Deadline deadline);
Result<std::pair<Fd, Fd>> socket_pair();

struct PeerCredentials {
  pid_t pid;
  uid_t uid;
  gid_t gid;
};
Result<PeerCredentials> peer_credentials(int socket);

// One message = 4-byte big-endian length, then that many bytes, with up to kMaxPassedFds descriptors on its first byte.
struct Frame {
  Bytes payload;
  std::vector<Fd> fds;
};
// send_frame: the descriptors stay the caller's.
Result<void> send_frame(int socket, ByteView payload, std::span<const int> fds, Deadline deadline);
// Errors: kTooLarge over max_bytes, kIo when closed ("connection closed" before a first byte), kCorrupt on unexpected
// descriptors, kDeadline.
Result<Frame> receive_frame(int socket, size_t max_bytes, size_t max_fds, Deadline deadline);

}  // namespace tie::os
