#include "inference/bones/kernels/cuda/emulator/block_emulator.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace tie::bones::cuda {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr uint32_t kLanes = 32, kGroupLanes = 128, kMaxThreads = 1024, kMaxShared = 227 << 10, kTouchBytes = 2;

float bf16_half(uint32_t word, uint32_t which) {
  return std::bit_cast<float>(which == 0 ? word << 16 : word & 0xffff0000u);
}

}  // namespace

// Never returns for a fault: the fiber is abandoned where it stands, with its stack.
void BlockEmulator::fault(const std::string& what) {
  if (fault_.empty())
    fault_ = "block (" + std::to_string(block_.x) + ", " + std::to_string(block_.y) + ", " + std::to_string(block_.z) +
             "), thread " + std::to_string(current_) + ": " + what;
  yield(Waits::kDone);
}

// Fibers are entered once by setcontext and switched by setjmp from then on, which spares two system calls each time.
void BlockEmulator::yield(Waits why) {
  Fiber& self = fibers_[current_];
  self.waits = why;
  if (_setjmp(self.resume_at) == 0) _longjmp(scheduler_, 1);
}

void BlockEmulator::resume(Fiber& fiber) {
  if (_setjmp(scheduler_) != 0) return;
  if (fiber.started) _longjmp(fiber.resume_at, 1);
  fiber.started = true;
  ::setcontext(&fiber.context);
}

void BlockEmulator::touch(uint32_t offset, uint32_t bytes, bool writes) {
  if (offset > shared_.size() || bytes > shared_.size() - offset) return fault("an access outside the shared memory");
  const auto self = static_cast<uint16_t>(current_);
  for (uint32_t unit = offset / kTouchBytes; unit <= (offset + bytes - 1) / kTouchBytes; ++unit) {
    Touch& t = touches_[unit];
    if (t.epoch != epoch_) t = {.epoch = epoch_};
    const bool written_by_other = t.writer != 0xffff && t.writer != self;
    const bool read_by_other = t.many_readers || (t.reader != 0xffff && t.reader != self);
    if (written_by_other || (writes && read_by_other))
      return fault("a race on shared byte " + std::to_string(unit * kTouchBytes) + " with thread " +
                   std::to_string(written_by_other ? t.writer : t.reader));
    if (writes)
      t.writer = self;
    else if (t.reader != self) {
      t.many_readers = t.many_readers || t.reader != 0xffff;
      t.reader = self;
    }
  }
}

void BlockEmulator::enter(uint32_t low, uint32_t high) {
  auto* self = reinterpret_cast<BlockEmulator*>(uintptr_t{low} | uintptr_t{high} << 32);
  EmulatedBlock block(*self);
  (*self->body_)(block);
  self->yield(Waits::kDone);
}

void BlockEmulator::prepare_fibers() {
  const auto self = reinterpret_cast<uintptr_t>(this);
  for (Fiber& fiber : fibers_) {
    fiber.waits = Waits::kRunning;
    fiber.started = false;
    fiber.turn = 0;
    ::getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    ::makecontext(&fiber.context, reinterpret_cast<void (*)()>(&BlockEmulator::enter), 2, static_cast<uint32_t>(self),
                  static_cast<uint32_t>(self >> 32));
  }
}

// Those that wait with all others of their warp or warpgroup.
bool BlockEmulator::release_groups(Waits why, uint32_t lanes) {
  bool released = false;
  for (uint32_t first = 0; first + lanes <= launch_.threads; first += lanes) {
    auto group = std::span(fibers_).subspan(first, lanes);
    if (!std::all_of(group.begin(), group.end(), [&](const Fiber& f) { return f.waits == why; })) continue;
    for (Fiber& f : group) f.waits = Waits::kRunning;
    released = true;
  }
  return released;
}

// Lets those go on whose meeting is complete. False: nobody can.
bool BlockEmulator::release_waiters() {
  bool released = release_groups(Waits::kWarp, kLanes);
  released = release_groups(Waits::kGroup, kGroupLanes) || released;
  for (Fiber& f : fibers_) {
    if (f.waits != Waits::kPhase || barriers_[f.barrier].phase == f.parity) continue;
    f.waits = Waits::kRunning;
    released = true;
  }
  if (released) return true;
  if (!std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.waits == Waits::kBlock; }))
    return false;
  for (Fiber& f : fibers_) f.waits = Waits::kRunning;
  ++epoch_;
  return true;
}

Result<void> BlockEmulator::run_block() {
  prepare_fibers();
  barriers_.clear();
  tensor_columns_ = 0;
  ++epoch_;
  for (;;) {
    if (launch_.order_seed > 1) std::shuffle(order_.begin(), order_.end(), random_);
    for (uint32_t thread : order_) {
      if (fibers_[thread].waits != Waits::kRunning) continue;
      current_ = thread;
      resume(fibers_[thread]);
      if (!fault_.empty()) return fail(Code::kInternal, fault_);
    }
    if (std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.waits == Waits::kDone; })) return {};
    if (!release_waiters())
      return fail(Code::kInternal, "block (" + std::to_string(block_.x) + ", " + std::to_string(block_.y) + ", " +
                                       std::to_string(block_.z) +
                                       "): some threads wait at a barrier or shuffle that others never reach");
  }
}

Result<void> BlockEmulator::run(const EmulatedLaunch& launch, const Body& body) {
  if (launch.threads == 0 || launch.threads > kMaxThreads || launch.threads % kLanes != 0 ||
      launch.shared_bytes > kMaxShared)
    return fail(Code::kBadRequest,
                "a block has 32 to 1024 threads in whole warps and at most 227 KiB of shared memory");
  launch_ = launch;
  body_ = &body;
  fault_.clear();
  random_.seed(launch.order_seed);
  fibers_.resize(launch.threads);
  for (Fiber& fiber : fibers_) fiber.stack.resize(kStackBytes);
  order_.resize(launch.threads);
  std::iota(order_.begin(), order_.end(), 0);
  if (launch.order_seed == 1) std::reverse(order_.begin(), order_.end());
  touches_.assign(launch.shared_bytes / kTouchBytes + 1, {});
  epoch_ = 0;
  for (block_.z = 0; block_.z < launch.grid.z; ++block_.z)
    for (block_.y = 0; block_.y < launch.grid.y; ++block_.y)
      for (block_.x = 0; block_.x < launch.grid.x; ++block_.x) {
        shared_.assign(launch.shared_bytes, std::byte{0xa5});  // never what a body expects to find
        TIE_CHECK_OK(run_block());
      }
  return {};
}

uint32_t EmulatedBlock::thread() const {
  return emulator_.current_;
}
uint32_t EmulatedBlock::threads() const {
  return emulator_.launch_.threads;
}
uint32_t EmulatedBlock::block_x() const {
  return emulator_.block_.x;
}
uint32_t EmulatedBlock::block_y() const {
  return emulator_.block_.y;
}
uint32_t EmulatedBlock::block_z() const {
  return emulator_.block_.z;
}
uint32_t EmulatedBlock::blocks_x() const {
  return emulator_.launch_.grid.x;
}
void EmulatedBlock::sync() const {
  emulator_.yield(BlockEmulator::Waits::kBlock);
}

uint32_t EmulatedBlock::shuffle_xor(uint32_t v, uint32_t mask) const {
  const uint32_t self = emulator_.current_, peer = (self & ~31u) | ((self ^ mask) & 31u);
  BlockEmulator::Fiber& mine = emulator_.fibers_[self];
  const uint32_t turn = mine.turn++ % 2;
  mine.shown[turn][0] = v;
  emulator_.yield(BlockEmulator::Waits::kWarp);
  return emulator_.fibers_[peer].shown[turn][0];
}
float EmulatedBlock::shuffle_xor(float v, uint32_t mask) const {
  return std::bit_cast<float>(shuffle_xor(std::bit_cast<uint32_t>(v), mask));
}

// The fragments of mma.m16n8k16 as the PTX manual lays them out over the lanes.
void EmulatedBlock::mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) const {
  const uint32_t self = emulator_.current_, warp = self & ~31u, lane = self & 31u;
  BlockEmulator::Fiber& mine = emulator_.fibers_[self];
  const uint32_t turn = mine.turn++ % 2;
  for (uint32_t i = 0; i < 4; ++i) mine.shown[turn][i] = a[i];
  for (uint32_t i = 0; i < 2; ++i) mine.shown[turn][4 + i] = b[i];
  emulator_.yield(BlockEmulator::Waits::kWarp);
  for (uint32_t out = 0; out < 4; ++out) {
    const uint32_t row = lane / 4 + (out / 2) * 8, column = (lane % 4) * 2 + out % 2;
    float sum = 0;
    for (uint32_t k = 0; k < 16; ++k) {
      const auto& from_a = emulator_.fibers_[warp + (row % 8) * 4 + (k % 8) / 2].shown[turn];
      const auto& from_b = emulator_.fibers_[warp + column * 4 + (k % 8) / 2].shown[turn];
      sum += bf16_half(from_a[(row / 8) + 2 * (k / 8)], k % 2) * bf16_half(from_b[4 + k / 8], k % 2);
    }
    d[out] += sum;
  }
}

}  // namespace tie::bones::cuda
