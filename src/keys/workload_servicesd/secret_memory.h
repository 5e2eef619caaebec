// Memory for long-lived private keys that even the kernel's own view of this process leaves out: memfd_secret where the
// kernel has it, else locked memory outside core dumps. Zeroed when destroyed. One owner. Source: memfd_secret(2).
#pragma once
#include "base/bytes.h"
#include "base/result.h"

namespace tie::wsd {

class SecretMemory {
 public:
  // kIo when no memory can be had at all.
  static Result<SecretMemory> create(size_t size);
  SecretMemory(SecretMemory&& other) noexcept;
  SecretMemory& operator=(SecretMemory&& other) noexcept;
  ~SecretMemory();
  std::span<uint8_t> span() { return {data_, size_}; }
  ByteView view() const { return {data_, size_}; }
  bool hidden() const { return hidden_; }  // true: memfd_secret; false: only locked

 private:
  SecretMemory() = default;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  bool hidden_ = false;
};

// Whether this kernel gives memfd_secret: for `tie doctor`.
bool hidden_memory_available();

}  // namespace tie::wsd
