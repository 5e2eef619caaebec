// Anonymous shared memory with seals, and read-only or read-write mappings of it.
// Owns: Mapping unmaps when destroyed; a memfd lives as long as some process holds a descriptor or mapping of it.
// Rule: a receiver checks the seals it relies on *before* it maps, else a peer's truncate ends it with SIGBUS.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "os/fd.h"

namespace tie::os {

// F_SEAL_* of fcntl.h, combined.
using Seals = int;
extern const Seals kSealSize;         // SHRINK | GROW | SEAL
extern const Seals kSealAll;          // SHRINK | GROW | SEAL | WRITE
extern const Seals kSealFutureWrite;  // SHRINK | GROW | SEAL | FUTURE_WRITE

// Not executable (MFD_NOEXEC_SEAL where the kernel has it), sealing allowed.
Result<Fd> create_memfd(const std::string& name, size_t bytes);
Result<void> add_seals(int fd, Seals seals);
Result<Seals> get_seals(int fd);
// kPermissionDenied, naming what is missing, unless every seal of `required` is set.
Result<void> require_seals(int fd, Seals required);
Result<size_t> file_size(int fd);

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  // Maps the first `bytes` of fd, shared. bytes 0 = whole file.
  static Result<Mapping> read_only(int fd, size_t bytes = 0);
  static Result<Mapping> read_write(int fd, size_t bytes = 0);
  static Result<Mapping> file_read_only(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::span<std::byte> writable() { return {data_, size_}; }
  size_t size() const { return size_; }

  // Has all pages of a writable mapping allocated by one call, where all of it is going to be written: a fault for each
  // page costs more. Nothing changes where the kernel will not (before Linux 5.14).
  void allocate_pages();

  // Gathers what has been written so far into pages of 2 MB, for this and every later mapping of the descriptor. Costs
  // about a copy. False, and nothing lost, where the kernel will not (before Linux 6.1, no memory, less than 2 MB).
  bool use_huge_pages();

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tie::os
