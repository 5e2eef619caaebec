#include "keys/workload_servicesd/secret_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/secret_bytes.h"

namespace tie::wsd {
namespace {

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

constexpr size_t kPage = 4096;
size_t whole_pages(size_t size) {
  return (size + kPage - 1) / kPage * kPage;
}

// nullptr when the kernel has no such memory, or this process no more of it (it counts as locked memory).
void* map_hidden(size_t size) {
  int fd = static_cast<int>(::syscall(SYS_memfd_secret, O_CLOEXEC));
  if (fd < 0) return nullptr;
  void* page = MAP_FAILED;
  if (::ftruncate(fd, static_cast<off_t>(size)) == 0)
    page = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);  // the mapping keeps the memory; nobody else can reach it through /proc
  return page == MAP_FAILED ? nullptr : page;
}

}  // namespace

Result<SecretMemory> SecretMemory::create(size_t size) {
  SecretMemory out;
  const size_t pages = whole_pages(size);
  void* page = map_hidden(pages);
  out.hidden_ = page != nullptr;
  if (page == nullptr) {
    page = ::mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return fail_errno("mapping memory for a key", errno);
    ::mlock(page, pages);
    ::madvise(page, pages, MADV_DONTDUMP);
  }
  ::madvise(page, pages, MADV_DONTFORK);
  out.data_ = static_cast<uint8_t*>(page);
  out.size_ = size;
  return out;
}

SecretMemory::SecretMemory(SecretMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), hidden_(other.hidden_) {}

SecretMemory& SecretMemory::operator=(SecretMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(hidden_, other.hidden_);
  return *this;
}

SecretMemory::~SecretMemory() {
  if (data_ == nullptr) return;
  secure_zero(data_, size_);
  ::munmap(data_, whole_pages(size_));
}

bool hidden_memory_available() {
  void* page = map_hidden(kPage);
  if (page != nullptr) ::munmap(page, kPage);
  return page != nullptr;
}

}  // namespace tie::wsd
