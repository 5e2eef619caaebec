// Runs GPU kernel bodies on the CPU, block by block: every thread is a fiber, barriers and shuffles are meeting points,
// shared memory is watched. For tests, and for the emulated driver (fake_driver) behind which whole models run.
// What it proves: the arithmetic and the indexing of a body; that its result does not depend on the order in which
// threads run (run it in several orders); that no two threads touch a shared element between two barriers, one of them
// writing; that barriers and shuffles are reached by all who must. What it cannot: speed, and races in global memory.
// Threads: one at a time. Errors are values: the first fault ends the run.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tie::bones::cuda {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

struct EmulatedLaunch {
  Dim3 grid;
  uint32_t threads = 128;  // of a block; a multiple of 32, at most 1024
  uint32_t shared_bytes = 0;
  uint64_t order_seed = 0;  // 0: threads in ascending order, 1: descending, else at random
};

class BlockEmulator;

// One element of shared memory: reads and writes are recorded.
template <typename T>
class SharedElement {
 public:
  SharedElement(BlockEmulator& emulator, uint32_t offset) : emulator_(emulator), offset_(offset) {}
  operator T() const;  // NOLINT: it stands for the element
  SharedElement& operator=(T value);
  SharedElement& operator=(const SharedElement& other) { return *this = static_cast<T>(other); }
  SharedElement(const SharedElement&) = default;
  SharedElement& operator+=(T value) { return *this = static_cast<T>(*this) + value; }

 private:
  BlockEmulator& emulator_;
  uint32_t offset_;
};

template <typename T>
class SharedArray {
 public:
  SharedArray(BlockEmulator& emulator, uint32_t offset, uint32_t n) : emulator_(emulator), offset_(offset), n_(n) {}
  SharedElement<T> operator[](uint32_t i) const;

 private:
  BlockEmulator& emulator_;
  uint32_t offset_, n_;
};

// What a body sees as its block: the same names as in device.h.
class EmulatedBlock {
 public:
  explicit EmulatedBlock(BlockEmulator& emulator) : emulator_(emulator) {}
  uint32_t thread() const;
  uint32_t threads() const;
  uint32_t block_x() const;
  uint32_t block_y() const;
  uint32_t block_z() const;
  uint32_t blocks_x() const;
  void sync() const;
  float shuffle_xor(float v, uint32_t mask) const;
  uint32_t shuffle_xor(uint32_t v, uint32_t mask) const;
  template <typename T>
  SharedArray<T> shared(uint32_t byte_offset, uint32_t n) const {
    return SharedArray<T>(emulator_, byte_offset, n);
  }
  void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) const;

 private:
  BlockEmulator& emulator_;
};

class BlockEmulator {
 public:
  using Body = std::function<void(EmulatedBlock&)>;

  // Runs the whole grid. kInternal, saying which thread did what, for a race, an access outside the shared memory, or
  // threads that wait for others that will not come.
  Result<void> run(const EmulatedLaunch& launch, const Body& body);

 private:
  friend class EmulatedBlock;
  template <typename T>
  friend class SharedElement;
  template <typename T>
  friend class SharedArray;

  enum class Waits : uint8_t { kRunning, kBlock, kWarp, kDone };
  struct Fiber {
    ucontext_t context{};
    std::vector<std::byte> stack;
    Waits waits = Waits::kRunning;
    bool started = false;
    jmp_buf resume_at;
    // What a lane shows its warp: a shuffled value, or fragments of a and b. Two in turn: a lane that is ahead shows
    // the next one while others still look at this, and it cannot be two ahead, because the next meeting wants
    // everybody.
    uint32_t turn = 0;
    uint32_t shown[2][6] = {};
  };
  // Who touched a 2-byte unit of shared memory since the last barrier.
  struct Touch {
    uint32_t epoch = 0;
    uint16_t writer = 0xffff, reader = 0xffff;
    bool many_readers = false;
  };

  static void enter(uint32_t low, uint32_t high);
  Result<void> run_block();
  void prepare_fibers();
  bool release_waiters();
  void fault(const std::string& what);
  void yield(Waits why);
  void resume(Fiber& fiber);
  void touch(uint32_t offset, uint32_t bytes, bool writes);

  EmulatedLaunch launch_;
  const Body* body_ = nullptr;
  Dim3 block_;
  std::vector<Fiber> fibers_;
  std::vector<uint32_t> order_;
  std::vector<std::byte> shared_;
  std::vector<Touch> touches_;
  jmp_buf scheduler_;
  uint32_t current_ = 0, epoch_ = 0;
  std::string fault_;
  std::mt19937_64 random_;
};

template <typename T>
SharedElement<T>::operator T() const {
  emulator_.touch(offset_, sizeof(T), false);
  T value;
  __builtin_memcpy(&value, emulator_.shared_.data() + offset_, sizeof(T));
  return value;
}
template <typename T>
SharedElement<T>& SharedElement<T>::operator=(T value) {
  emulator_.touch(offset_, sizeof(T), true);
  __builtin_memcpy(emulator_.shared_.data() + offset_, &value, sizeof(T));
  return *this;
}
template <typename T>
SharedElement<T> SharedArray<T>::operator[](uint32_t i) const {
  if (i >= n_) emulator_.fault("index " + std::to_string(i) + " of a shared array of " + std::to_string(n_));
  return SharedElement<T>(emulator_, offset_ + i * static_cast<uint32_t>(sizeof(T)));
}

}  // namespace tie::bones::cuda
