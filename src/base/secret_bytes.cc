#include "base/secret_bytes.h"

#include <string.h>
#include <sys/mman.h>

#include <new>

namespace tie {
namespace {
constexpr size_t kPage = 4096;
size_t mapped_size(size_t size) {
  return (size + kPage - 1) / kPage * kPage;
}
}  // namespace

void secure_zero(void* data, size_t size) {
  if (size != 0) explicit_bzero(data, size);
}

// A page of its own for each secret: munlock of one never unlocks another, and a small count of secrets exists at any
// time.
SecretBytes::SecretBytes(size_t size) : size_(size) {
  if (size == 0) return;
  void* page = mmap(nullptr, mapped_size(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  mlock(page, mapped_size(size));  // best effort: RLIMIT_MEMLOCK may be small; `tie doctor` reports it
  madvise(page, mapped_size(size), MADV_DONTDUMP);
  data_ = static_cast<uint8_t*>(page);
}

SecretBytes SecretBytes::copy_of(ByteView from) {
  SecretBytes out(from.size());
  if (!from.empty()) memcpy(out.data_, from.data(), from.size());
  return out;
}

SecretBytes::SecretBytes(SecretBytes&& other) noexcept : data_(other.data_), size_(other.size_) {
  other.data_ = nullptr;
  other.size_ = 0;
}

SecretBytes& SecretBytes::operator=(SecretBytes&& other) noexcept {
  if (this != &other) {
    wipe();
    data_ = other.data_;
    size_ = other.size_;
    other.data_ = nullptr;
    other.size_ = 0;
  }
  return *this;
}

SecretBytes::~SecretBytes() {
  wipe();
}

void SecretBytes::wipe() {
  if (data_ != nullptr) {
    secure_zero(data_, size_);
    munmap(data_, mapped_size(size_));
  }
  data_ = nullptr;
  size_ = 0;
}

}  // namespace tie
