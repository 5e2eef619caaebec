// Bytes that must not outlive their use: keys and shared secrets. Locked in memory where the limit allows, left out of
// core dumps, zeroed when destroyed or moved from; cannot be copied by accident or printed. One owner, one thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace tie {

class SecretBytes {
 public:
  SecretBytes() = default;
  explicit SecretBytes(size_t size);          // zero-filled
  static SecretBytes copy_of(ByteView from);  // the caller still owns, and should wipe, `from`
  SecretBytes(SecretBytes&& other) noexcept;
  SecretBytes& operator=(SecretBytes&& other) noexcept;
  SecretBytes(const SecretBytes&) = delete;
  SecretBytes& operator=(const SecretBytes&) = delete;
  ~SecretBytes();

  SecretBytes clone() const { return copy_of(view()); }
  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ByteView view() const { return {data_, size_}; }
  std::span<uint8_t> span() { return {data_, size_}; }
  void wipe();  // zeroes and releases; size() becomes 0

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Zeroes memory in a way the compiler keeps.
void secure_zero(void* data, size_t size);
inline void secure_zero(Bytes& bytes) {
  secure_zero(bytes.data(), bytes.size());
}
inline void secure_zero(std::string& text) {
  secure_zero(text.data(), text.size());
}

}  // namespace tie
