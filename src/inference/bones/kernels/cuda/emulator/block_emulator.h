// Runs GPU kernel bodies on the CPU, block by block: every thread is a fiber, barriers and shuffles are meeting points,
// shared memory is watched. For tests, and for the emulated driver (fake_driver) behind which whole models run.
// The asynchronous units of Hopper and Blackwell (async_units.cc) do their work at once, where the instruction stands,
// on shared memory as tensor_core/descriptors.h lays it out; that nobody reads their results too early is not seen.
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
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "inference/bones/kernels/cuda/tensor_core/descriptors.h"

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

  // As in tensor_core/ptx.h; addresses are offsets.
  uint32_t shared_base() const { return 0; }
  void store_16(uint32_t to, const Bytes16& v) const;
  uint32_t load_word(uint32_t from) const;
  void publish_stores() const {}
  void sync_warp() const;
  void sync_group(uint32_t id) const;
  void barrier_init(uint32_t at, uint32_t arrivals) const;
  void publish_barriers() const {}
  void barrier_arrive(uint32_t at) const;
  void barrier_expect(uint32_t at, uint32_t bytes) const;
  void barrier_wait(uint32_t at, uint32_t parity) const;
  void load_tile(uint32_t to, const TensorMap& map, uint32_t barrier, uint32_t x, uint32_t y) const;
  void load_tile(uint32_t to, const TensorMap& map, uint32_t barrier, uint32_t x, uint32_t y, uint32_t z,
                 uint32_t w) const;
  void begin_products() const {}
  void commit_products() const {}
  template <uint32_t kLeft>
  void wait_products() const {
    sync_warp();
  }
  template <typename Registers>
  void hold(Registers&) const {}
  template <bool kBf16, uint32_t n>
  void multiply(float (&d)[n], uint64_t a_at, uint64_t b_at, bool add_to) const {
    multiply_group(d, n, nullptr, a_at, b_at, add_to, kBf16);
  }
  template <bool kBf16, uint32_t n>
  void multiply_rows(float (&d)[n], const uint32_t (&a_is)[4], uint64_t b_at) const {
    multiply_group(d, n, a_is, 0, b_at, true, kBf16);
  }
  void take_tensor_memory(uint32_t to, uint32_t columns) const;
  void give_tensor_memory(uint32_t at, uint32_t columns) const;
  void before_sync() const {}
  void after_sync() const {}
  void multiply_tile(uint32_t d_at, uint64_t a_at, uint64_t b_at, uint32_t instruction, bool add_to) const;
  void arrive_after_products(uint32_t barrier) const { barrier_arrive(barrier); }
  void read_tensor_memory(float (&d)[32], uint32_t from) const;

 private:
  void multiply_group(float* d, uint32_t n, const uint32_t* a_is, uint64_t a_at, uint64_t b_at, bool add_to,
                      bool bf16) const;
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

  enum class Waits : uint8_t { kRunning, kBlock, kWarp, kGroup, kPhase, kDone };
  struct Fiber {
    ucontext_t context{};
    std::vector<std::byte> stack;
    Waits waits = Waits::kRunning;
    bool started = false;
    jmp_buf resume_at;
    uint32_t barrier = 0, parity = 0;  // of a wait for a phase
    // What a lane shows its warp: a shuffled value, or fragments of a and b. Two in turn: a lane that is ahead shows
    // the next one while others still look at this, and it cannot be two ahead, because the next meeting wants
    // everybody.
    uint32_t turn = 0;
    uint32_t shown[2][6] = {};
  };
  // A barrier in shared memory.
  struct PhaseBarrier {
    uint32_t arrivals = 0, missing = 0, phase = 0;
    int64_t missing_bytes = 0;
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
  bool release_groups(Waits why, uint32_t lanes);
  PhaseBarrier* barrier_at(uint32_t at);
  void settle(PhaseBarrier& barrier);
  void copy_tile(uint32_t to, const TensorMap& map, uint32_t barrier, const uint32_t (&first)[4], uint32_t rank);
  std::byte* raw_shared(uint32_t at, uint32_t bytes);
  float operand(uint32_t at, bool bf16);
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
  std::map<uint32_t, PhaseBarrier> barriers_;
  std::vector<float> tensor_memory_;  // [lane][column]
  uint32_t tensor_columns_ = 0;       // taken
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
