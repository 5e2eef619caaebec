#include "os/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <tuple>
#include <utility>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace tie::os {

const Seals kSealSize = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
const Seals kSealAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE;
const Seals kSealFutureWrite = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE;

Result<Fd> create_memfd(const std::string& name, size_t bytes) {
  int raw = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (raw < 0 && errno == EINVAL) raw = ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (raw < 0) return fail_errno("creating shared memory", errno);
  Fd fd(raw);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return fail_errno("sizing shared memory", errno);
  return fd;
}

Result<void> add_seals(int fd, Seals seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals) != 0) return fail_errno("sealing shared memory", errno);
  return {};
}

Result<Seals> get_seals(int fd) {
  int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return fail_errno("reading the seals of a descriptor", errno);
  return seals;
}

Result<void> require_seals(int fd, Seals required) {
  // A descriptor that cannot carry seals at all (a file, a socket) lacks every one of them.
  int have = ::fcntl(fd, F_GET_SEALS);
  Seals missing = required & ~(have < 0 ? 0 : have);
  if (missing == 0) return {};
  std::string names;
  auto add = [&](int bit, const char* name) {
    if (missing & bit) names += std::string(names.empty() ? "" : ", ") + name;
  };
  add(F_SEAL_SHRINK, "SHRINK");
  add(F_SEAL_GROW, "GROW");
  add(F_SEAL_SEAL, "SEAL");
  add(F_SEAL_WRITE, "WRITE");
  add(F_SEAL_FUTURE_WRITE, "FUTURE_WRITE");
  return fail(Code::kPermissionDenied, "shared memory is not sealed against " + names);
}

Result<size_t> file_size(int fd) {
  struct stat st{};
  if (::fstat(fd, &st) != 0) return fail_errno("reading the size of a descriptor", errno);
  return static_cast<size_t>(st.st_size);
}

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// A file's huge pages can only be mapped as such where address and offset agree modulo 2 MB.
Result<std::pair<std::byte*, size_t>> map_aligned(int fd, size_t bytes, int protection) {
  const size_t reserved = bytes + kHugePage;
  void* raw = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return fail_errno("reserving addresses", errno);
  auto* first = static_cast<std::byte*>(raw);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(raw) % kHugePage) % kHugePage,
               used = (bytes + 4095) / 4096 * 4096;
  void* at = ::mmap(first + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    ::munmap(raw, reserved);
    return fail_errno("mapping shared memory", error);
  }
  if (before != 0) ::munmap(raw, before);
  if (before + used < reserved) ::munmap(first + before + used, reserved - before - used);
  return std::pair{static_cast<std::byte*>(at), bytes};
}

// A mapping beyond the end of the file would end the reader with SIGBUS, so the size is checked first.
Result<std::pair<std::byte*, size_t>> map(int fd, size_t bytes, int protection) {
  TIE_TRY(size_t size, file_size(fd));
  if (bytes == 0) bytes = size;
  if (bytes > size) return fail(Code::kOutOfRange, "mapping more bytes than the descriptor has");
  if (bytes == 0) return std::pair<std::byte*, size_t>{nullptr, 0};
  if (bytes >= 2 * kHugePage) return map_aligned(fd, bytes, protection);
  void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail_errno("mapping shared memory", errno);
  return std::pair{static_cast<std::byte*>(at), bytes};
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<Mapping> Mapping::read_only(int fd, size_t bytes) {
  TIE_TRY(auto mapped, map(fd, bytes, PROT_READ));
  Mapping out;
  std::tie(out.data_, out.size_) = mapped;
  return out;
}

Result<Mapping> Mapping::read_write(int fd, size_t bytes) {
  TIE_TRY(auto mapped, map(fd, bytes, PROT_READ | PROT_WRITE));
  Mapping out;
  std::tie(out.data_, out.size_) = mapped;
  return out;
}

void Mapping::allocate_pages() {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, newer than the C library's headers
  if (size_ != 0) (void)::madvise(data_, size_, kPopulateWrite);
}

bool Mapping::use_huge_pages() {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, newer than the C library's headers
  const size_t whole = size_ / kHugePage * kHugePage;
  return whole != 0 && ::madvise(data_, whole, kCollapse) == 0;
}

Result<Mapping> Mapping::file_read_only(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_path(path, errno);
  return read_only(fd.get(), 0);
}

}  // namespace tie::os
