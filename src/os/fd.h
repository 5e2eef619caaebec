// Owned file descriptors and whole reads and writes. A descriptor is closed with its object. All descriptors the
// product opens are CLOEXEC. Threads: an Fd belongs to one thread at a time.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"

namespace tie::os {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }
  int release() { return std::exchange(fd_, -1); }
  void close();
  Result<Fd> duplicate() const;

 private:
  int fd_ = -1;
};

// Reads exactly out.size() bytes. End of stream before that: kIo "connection closed" (out may be partly filled).
// kDeadline when late.
Result<void> read_exact(int fd, std::span<uint8_t> out, Deadline deadline);
Result<void> write_all(int fd, ByteView bytes, Deadline deadline);
// Why a path could not be opened or looked at: kNotFound where there is none, else kIo, with the path and errno's
// words.
[[nodiscard]] std::unexpected<Error> fail_path(const std::string& path, int errno_value);
// A whole file, at most max_bytes (else kTooLarge).
Result<Bytes> read_file(const std::string& path, size_t max_bytes);
// Writes beside the target and renames, so that a reader sees the old or the new file, never half of one.
Result<void> write_file_atomic(const std::string& path, ByteView bytes, int mode = 0600);
// Waits until fd is readable (or closed by the peer). kDeadline when late.
Result<void> wait_readable(int fd, Deadline deadline);
Result<void> wait_writable(int fd, Deadline deadline);

}  // namespace tie::os
