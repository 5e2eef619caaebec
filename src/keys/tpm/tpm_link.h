// The way to a TPM 2.0: a device file (/dev/tpmrm0) or the unix socket of swtpm (`--server type=unixio`). One command
// out, one response back, each with a deadline. One thread. The response is untrusted: its size is bounded and its
// header checked.
#pragma once
#include <string>

#include "base/clock.h"
#include "os/fd.h"

namespace tie::tpm {

constexpr size_t kHeaderBytes = 10;  // tag, size, code
constexpr size_t kMaxMessageBytes = 4096;
constexpr int64_t kCommandTimeoutMs = 10'000;

class TpmLink {
 public:
  static Result<TpmLink> open(const std::string& path);
  // The response with its header. kIo, kDeadline, kCorrupt.
  Result<Bytes> transact(ByteView command);

 private:
  TpmLink(os::Fd fd, bool socket) : fd_(std::move(fd)), socket_(socket) {}
  os::Fd fd_;
  bool socket_;
};

}  // namespace tie::tpm
