#include "base/secret_bytes.h"

#include <string.h>
#include <sys/mman.h>

#include <array>
#include <mutex>
#include <new>

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace tie {
namespace {

constexpr size_t kPage = 4096;

size_t mapped_size(size_t size) {
  return (size + kPage - 1) / kPage * kPage;
}

uint8_t* map_secret(size_t size) {
  void* page = mmap(nullptr, mapped_size(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  mlock(page, mapped_size(size));  // best effort: RLIMIT_MEMLOCK may be small; `tie doctor` reports it
  madvise(page, mapped_size(size), MADV_DONTDUMP);
  return static_cast<uint8_t*>(page);
}

// Keys are many and small, and a request makes a hundred of them one after the other: mapping, locking and unmapping a
// page costs 5.6 us, a slot 0.05. Pages of equal slots, kept for the process's life; a slot that is free is zero but
// for its link to the next.
class Slots {
 public:
  explicit constexpr Slots(size_t slot_bytes) : slot_bytes_(slot_bytes) {}

  size_t slot_bytes() const { return slot_bytes_; }

  uint8_t* take(size_t size) {
    std::lock_guard lock(mutex_);
    if (free_ == nullptr) add_page();
    Free* slot = free_;
    ASAN_UNPOISON_MEMORY_REGION(slot, sizeof(Free));
    free_ = slot->next;
    slot->next = nullptr;
    ASAN_POISON_MEMORY_REGION(slot, sizeof(Free));
    ASAN_UNPOISON_MEMORY_REGION(slot, size);
    return reinterpret_cast<uint8_t*>(slot);
  }

  // A slot of zeros.
  void give_back(uint8_t* data) {
    std::lock_guard lock(mutex_);
    ASAN_UNPOISON_MEMORY_REGION(data, sizeof(Free));
    free_ = new (data) Free{free_};
    ASAN_POISON_MEMORY_REGION(data, slot_bytes_);
  }

 private:
  struct Free {
    Free* next;
  };

  void add_page() {
    uint8_t* page = map_secret(kPage);
    for (size_t at = kPage; at >= slot_bytes_; at -= slot_bytes_) free_ = new (page + at - slot_bytes_) Free{free_};
    ASAN_POISON_MEMORY_REGION(page, kPage);
  }

  const size_t slot_bytes_;
  std::mutex mutex_;
  Free* free_ = nullptr;
};

constinit std::array<Slots, 3> all_slots{Slots(64), Slots(256), Slots(1024)};

// nullptr: the secret has pages of its own.
Slots* slots_for(size_t size) {
  for (Slots& slots : all_slots)
    if (size <= slots.slot_bytes()) return &slots;
  return nullptr;
}

}  // namespace

void secure_zero(void* data, size_t size) {
  if (size != 0) explicit_bzero(data, size);
}

SecretBytes::SecretBytes(size_t size) : size_(size) {
  if (size == 0) return;
  Slots* slots = slots_for(size);
  data_ = slots != nullptr ? slots->take(size) : map_secret(size);
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
    if (Slots* slots = slots_for(size_))
      slots->give_back(data_);
    else
      munmap(data_, mapped_size(size_));
  }
  data_ = nullptr;
  size_ = 0;
}

}  // namespace tie
