// How operands lie in shared memory for wgmma (sm_90a) and tcgen05 (sm_100a), and the descriptors that tell the units
// so. Source: PTX ISA 9.0, "Asynchronous warpgroup level matrix instructions" (matrix descriptor, canonical layouts),
// "TensorCore 5th generation" (shared memory descriptor, instruction descriptor) and "Tensor swizzling modes".
//
// One layout everywhere: the 128-byte swizzle. A tile has rows of 128 bytes (64 numbers of 16 bits); eight rows are an
// atom of 1024 bytes, aligned to 1024. The 16-byte piece p of row r lies where piece p ^ (r % 8) would: bits 4-6 of an
// address are exchanged with bits 7-9 exclusive-or them. TMA writes tiles so, threads do it by swizzled().
//   K-major operand (rows are m or n, 64 values of k in a row): the stride offset leads from eight rows to the next
//   eight; the leading offset is not used. The next 16 values of k: start address + 32.
//   MN-major operand (rows are k, 64 values of n in a row; wgmma's transposed b): the stride offset leads to the next
//   eight k, the leading offset to the next 64 values of n. The next 16 values of k: start address + 2048.
#pragma once
#include "inference/bones/kernels/cuda/device.h"

namespace tie::bones::cuda {

// What the driver's cuTensorMapEncodeTiled writes; opaque, read by TMA alone.
struct alignas(64) TensorMap {
  uint8_t bytes[128];
};

inline constexpr uint32_t kTileRowBytes = 128, kAtomBytes = 1024;
inline constexpr uint32_t kStepBytes = 32;  // 16 values of k within a K-major row

// Where the 16-byte piece of a row lies in a tile.
TIE_DEVICE uint32_t swizzled(uint32_t row, uint32_t piece) {
  return row * kTileRowBytes + ((piece ^ (row % 8)) << 4);
}

// wgmma's matrix descriptor. Bits 0-13 start address, 16-29 leading offset, 32-45 stride offset (all in units of 16
// bytes), 49-51 base offset (0: tiles are aligned), 62-63 swizzle (1: 128 bytes).
TIE_DEVICE uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes) {
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{leading_bytes >> 4} << 16 | uint64_t{kAtomBytes >> 4} << 32 |
         uint64_t{1} << 62;
}

// tcgen05's: the same fields; bits 46-48 are 1, bit 52 says that offsets are relative (0), 61-63 swizzle (2: 128
// bytes).
TIE_DEVICE uint64_t tcgen05_descriptor(uint32_t address) {
  return uint64_t{(address & 0x3ffffu) >> 4} | uint64_t{1} << 16 | uint64_t{kAtomBytes >> 4} << 32 | uint64_t{1} << 46 |
         uint64_t{2} << 61;
}

// tcgen05's instruction descriptor of kind::f16 for bf16 operands, both K-major, and sums in float: bits 4-5 type of d
// (1: f32), 7-9 and 10-12 types of a and b (1: bf16), 15 and 16 a and b transposed (0), 17-22 n / 8, 24-28 m / 16.
TIE_DEVICE constexpr uint32_t tcgen05_instruction(uint32_t m, uint32_t n) {
  return 1u << 4 | 1u << 7 | 1u << 10 | (n / 8) << 17 | (m / 16) << 24;
}

}  // namespace tie::bones::cuda
