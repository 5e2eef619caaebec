// The asynchronous units on the emulator: barriers with phases, TMA, wgmma and tcgen05, as tensor_core/ptx.h names them
// and tensor_core/descriptors.h describes their operands.
#include <algorithm>
#include <bit>
#include <cstring>

#include "inference/bones/kernels/cuda/emulator/block_emulator.h"
#include "inference/bones/kernels/cuda/emulator/emulated_tensor_map.h"

namespace tie::bones::cuda {
namespace {

constexpr uint32_t kTensorColumns = 512, kTensorLanes = 128;

// The 128-byte swizzle, on addresses.
uint32_t swizzle(uint32_t address) {
  return address ^ ((address >> 7 & 7) << 4);
}

struct Operand {
  uint32_t start, leading, stride;
};
Operand decode(uint64_t descriptor) {
  return {static_cast<uint32_t>(descriptor & 0x3fff) << 4, static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4,
          static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4};
}
// Where element (row, k) of a K-major operand lies, and (n, k) of an MN-major one.
uint32_t k_major(const Operand& o, uint32_t row, uint32_t k) {
  return swizzle(o.start + row / 8 * o.stride + row % 8 * kTileRowBytes + k * 2);
}
uint32_t mn_major(const Operand& o, uint32_t n, uint32_t k) {
  return swizzle(o.start + n / 64 * o.leading + k / 8 * o.stride + k % 8 * kTileRowBytes + n % 64 * 2);
}

}  // namespace

// nullptr after a fault cannot be: a fault does not return.
std::byte* BlockEmulator::raw_shared(uint32_t at, uint32_t bytes) {
  if (at > shared_.size() || bytes > shared_.size() - at) fault("an access outside the shared memory");
  return shared_.data() + at;
}

float BlockEmulator::operand(uint32_t at, bool bf16) {
  uint16_t bits;
  std::memcpy(&bits, raw_shared(at, 2), 2);
  return bf16 ? bf16_value(bits) : half_value(bits);
}

// ---- barriers ----

BlockEmulator::PhaseBarrier* BlockEmulator::barrier_at(uint32_t at) {
  auto found = barriers_.find(at);
  if (found == barriers_.end()) fault("byte " + std::to_string(at) + " of shared memory is no barrier");
  return &found->second;
}

void BlockEmulator::settle(PhaseBarrier& barrier) {
  if (barrier.missing != 0 || barrier.missing_bytes != 0) return;
  barrier.phase ^= 1;
  barrier.missing = barrier.arrivals;
}

void EmulatedBlock::barrier_init(uint32_t at, uint32_t arrivals) const {
  emulator_.raw_shared(at, 8);
  emulator_.barriers_[at] = {arrivals, arrivals, 0, 0};
}

void EmulatedBlock::barrier_arrive(uint32_t at) const {
  barrier_expect(at, 0);
}

void EmulatedBlock::barrier_expect(uint32_t at, uint32_t bytes) const {
  BlockEmulator::PhaseBarrier& barrier = *emulator_.barrier_at(at);
  if (barrier.missing == 0) emulator_.fault("more arrivals at a barrier than it waits for");
  --barrier.missing;
  barrier.missing_bytes += bytes;
  emulator_.settle(barrier);
}

void EmulatedBlock::barrier_wait(uint32_t at, uint32_t parity) const {
  if (emulator_.barrier_at(at)->phase != parity) return;
  BlockEmulator::Fiber& mine = emulator_.fibers_[emulator_.current_];
  mine.barrier = at;
  mine.parity = parity;
  emulator_.yield(BlockEmulator::Waits::kPhase);
}

// ---- shared memory ----

void EmulatedBlock::store_16(uint32_t to, const Bytes16& v) const {
  if (to % 16 != 0) emulator_.fault("a store of 16 bytes that is not aligned");
  std::memcpy(emulator_.raw_shared(to, 16), &v, 16);
}
uint32_t EmulatedBlock::load_word(uint32_t from) const {
  uint32_t v;
  std::memcpy(&v, emulator_.raw_shared(from, 4), 4);
  return v;
}
void EmulatedBlock::sync_warp() const {
  emulator_.yield(BlockEmulator::Waits::kWarp);
}
void EmulatedBlock::sync_group(uint32_t id) const {
  if (id == 0 || id > 15) emulator_.fault("there is no such barrier");
  emulator_.yield(BlockEmulator::Waits::kGroup);
}

// ---- TMA ----

void BlockEmulator::copy_tile(uint32_t to, const TensorMap& map, uint32_t barrier, const uint32_t (&first)[4],
                              uint32_t rank) {
  EmulatedTensorMap m;
  std::memcpy(&m, map.bytes, sizeof m);
  if (m.rank != rank || m.box[0] * 2 != kTileRowBytes || to % (8 * kTileRowBytes) != 0)
    fault("a tile that does not fit its map");
  uint32_t rows = 1;
  for (uint32_t i = 1; i < rank; ++i) rows *= m.box[i];
  for (uint32_t row = 0; row < rows; ++row) {
    uint64_t at[4] = {first[0], first[1], first[2], first[3]};
    for (uint32_t i = 1, left = row; i < rank; left /= m.box[i], ++i) at[i] += left % m.box[i];
    for (uint32_t x = 0; x < m.box[0]; ++x) {
      uint64_t from = m.base + (at[0] + x) * 2;
      bool inside = at[0] + x < m.size[0];
      for (uint32_t i = 1; i < rank; ++i) {
        inside = inside && at[i] < m.size[i];
        from += at[i] * m.stride[i];
      }
      uint16_t bits = 0;
      if (inside) std::memcpy(&bits, reinterpret_cast<const void*>(from), 2);
      std::memcpy(raw_shared(swizzle(to + row * kTileRowBytes + x * 2), 2), &bits, 2);
    }
  }
  PhaseBarrier& waits = *barrier_at(barrier);
  waits.missing_bytes -= rows * kTileRowBytes;
  settle(waits);
}

void EmulatedBlock::load_tile(uint32_t to, const TensorMap& map, uint32_t barrier, uint32_t x, uint32_t y) const {
  emulator_.copy_tile(to, map, barrier, {x, y, 0, 0}, 2);
}
void EmulatedBlock::load_tile(uint32_t to, const TensorMap& map, uint32_t barrier, uint32_t x, uint32_t y, uint32_t z,
                              uint32_t w) const {
  emulator_.copy_tile(to, map, barrier, {x, y, z, w}, 4);
}

// ---- wgmma ----

// `n` sums of this thread: the fragments of mma, eight columns after eight. `a_is`: null, or a in registers, and b then
// is MN-major.
void EmulatedBlock::multiply_group(float* d, uint32_t n, const uint32_t* a_is, uint64_t a_at, uint64_t b_at,
                                   bool add_to, bool bf16) const {
  constexpr uint64_t kSwizzle128 = 1;
  if (b_at >> 62 != kSwizzle128 || (!a_is && a_at >> 62 != kSwizzle128))
    emulator_.fault("a descriptor without the 128-byte swizzle");
  const uint32_t self = emulator_.current_, warp_first = self & ~31u, lane = self & 31u, warp = self % 128 / 32;
  BlockEmulator::Fiber& mine = emulator_.fibers_[self];
  const uint32_t turn = mine.turn++ % 2;
  for (uint32_t i = 0; a_is && i < 4; ++i) mine.shown[turn][i] = a_is[i];
  emulator_.yield(BlockEmulator::Waits::kGroup);
  const Operand a = decode(a_at), b = decode(b_at);
  float row_a[2][16];
  for (uint32_t half = 0; half < 2; ++half)
    for (uint32_t k = 0; k < 16; ++k) {
      if (!a_is) {
        row_a[half][k] = emulator_.operand(k_major(a, warp * 16 + lane / 4 + 8 * half, k), bf16);
        continue;
      }
      const uint32_t word = emulator_.fibers_[warp_first + lane / 4 * 4 + k % 8 / 2].shown[turn][half + 2 * (k / 8)];
      const auto bits = static_cast<uint16_t>(k % 2 == 0 ? word : word >> 16);
      row_a[half][k] = bf16 ? bf16_value(bits) : half_value(bits);
    }
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = 0;
    for (uint32_t k = 0; k < 16; ++k)
      sum += row_a[i % 4 / 2][k] * emulator_.operand(a_is ? mn_major(b, column, k) : k_major(b, column, k), bf16);
    d[i] = add_to ? d[i] + sum : sum;
  }
}

// ---- tcgen05 ----

void EmulatedBlock::take_tensor_memory(uint32_t to, uint32_t columns) const {
  sync_warp();
  if (emulator_.current_ % 32 != 0) return;
  if (columns < 32 || !std::has_single_bit(columns) || emulator_.tensor_columns_ + columns > kTensorColumns)
    emulator_.fault("tensor memory cannot be had so");
  std::memcpy(emulator_.raw_shared(to, 4), &emulator_.tensor_columns_, 4);
  emulator_.tensor_columns_ += columns;
  emulator_.tensor_memory_.assign(size_t{kTensorLanes} * kTensorColumns, NAN);
}

void EmulatedBlock::give_tensor_memory(uint32_t, uint32_t columns) const {
  sync_warp();
  if (emulator_.current_ % 32 == 0) emulator_.tensor_columns_ -= columns;
}

void EmulatedBlock::multiply_tile(uint32_t d_at, uint64_t a_at, uint64_t b_at, uint32_t instruction,
                                  bool add_to) const {
  constexpr uint64_t kSwizzle128 = 2;
  for (uint64_t descriptor : {a_at, b_at})
    if (descriptor >> 61 != kSwizzle128 || (descriptor >> 46 & 7) != 1) emulator_.fault("not a descriptor of tcgen05");
  const uint32_t m = (instruction >> 24 & 31) * 16, n = (instruction >> 17 & 63) * 8;
  const uint32_t types = instruction & 0x1ffff;
  if (m != kTensorLanes || d_at + n > emulator_.tensor_columns_ || types != (1u << 4 | 1u << 7 | 1u << 10))
    emulator_.fault("an instruction descriptor that the emulator does not know");
  const Operand a = decode(a_at), b = decode(b_at);
  std::vector<float> values(size_t{m + n} * 16);
  for (uint32_t row = 0; row < m + n; ++row)
    for (uint32_t k = 0; k < 16; ++k)
      values[size_t{row} * 16 + k] = emulator_.operand(row < m ? k_major(a, row, k) : k_major(b, row - m, k), true);
  for (uint32_t row = 0; row < m; ++row)
    for (uint32_t column = 0; column < n; ++column) {
      float sum = 0;
      for (uint32_t k = 0; k < 16; ++k) sum += values[size_t{row} * 16 + k] * values[(size_t{m} + column) * 16 + k];
      float& d = emulator_.tensor_memory_[size_t{row} * kTensorColumns + d_at + column];
      d = add_to ? d + sum : sum;
    }
}

void EmulatedBlock::read_tensor_memory(float (&d)[32], uint32_t from) const {
  sync_warp();
  const uint32_t warp = emulator_.current_ % 128 / 32, column = from & 0xffff;
  if (from >> 16 != warp * 32 || column + 32 > kTensorColumns)
    emulator_.fault("lanes of tensor memory that belong to another warp");
  const float* row = &emulator_.tensor_memory_[size_t{warp * 32 + emulator_.current_ % 32} * kTensorColumns + column];
  std::copy_n(row, 32, d);
}

}  // namespace tie::bones::cuda
