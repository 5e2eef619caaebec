// The language of the GPU kernels: what a kernel body may use, in two meanings. Under nvcc these are the processor's
// own instructions; elsewhere they call the block emulator (emulator/block_emulator.h), so that every body runs and is
// checked on any machine. Included by the kernel bodies alone; C++20 (nvcc 13 goes no further). A body is a template
// over `Block`, which gives the thread's place, barriers, shuffles, shared memory and the tensor-core product:
//   b.thread(), b.threads(), b.block_x() ... , b.sync(), b.shuffle_xor(v, mask), b.template shared<T>(offset, n)[i],
//   b.mma(d, a, b)
// Rules: barriers and shuffles are called by all threads of the block or warp; threads of a block talk through shared
// memory with a barrier in between, or within a warp through shuffles.
#pragma once
#include <cstdint>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#define TIE_DEVICE __device__ __forceinline__
#define TIE_UNROLL _Pragma("unroll")  // arrays stay in registers only when every index is known
#else
#include <algorithm>
#include <bit>
#include <cmath>

#include "inference/bones/kernels/tile.h"
#define TIE_DEVICE inline
#define TIE_UNROLL
#endif

namespace tie::bones::cuda {

inline constexpr uint32_t kWarp = 32;

#ifdef __CUDACC__
TIE_DEVICE float as_float(uint32_t bits) {
  return __uint_as_float(bits);
}
TIE_DEVICE uint32_t as_bits(float f) {
  return __float_as_uint(f);
}
TIE_DEVICE float fast_exp2(float f) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(f));
  return out;
}
TIE_DEVICE float half_value(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
TIE_DEVICE uint16_t half_bits(float f) {
  return __half_as_ushort(__float2half_rn(fminf(fmaxf(f, -65504.0f), 65504.0f)));
}
// Byte `i` of a word as a number: behind the exponent of 2^23 a byte is the number's last bits.
TIE_DEVICE float byte_number(uint32_t word, uint32_t i) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540u | i)) - 8388608.0f;
}
// e4m3: a sign, four bits of exponent, three of fraction; up to 448, no infinity. Nearest even; NaN is not expected.
TIE_DEVICE float e4m3_value(uint8_t bits) {
  uint32_t two;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"(static_cast<uint16_t>(bits)));
  return half_value(static_cast<uint16_t>(two & 0xffffu));
}
TIE_DEVICE uint8_t e4m3_bits(float f) {
  uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(f));
  return static_cast<uint8_t>(two & 0xffu);
}
#else
TIE_DEVICE float as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
TIE_DEVICE uint32_t as_bits(float f) {
  return std::bit_cast<uint32_t>(f);
}
TIE_DEVICE float fast_exp2(float f) {
  return std::exp2(f);
}
TIE_DEVICE float half_value(uint16_t bits) {
  return half_to_float(bits);
}
TIE_DEVICE uint16_t half_bits(float f) {
  return static_cast<uint16_t>(float_to_half(f));
}
TIE_DEVICE float byte_number(uint32_t word, uint32_t i) {
  return static_cast<float>((word >> (8 * i)) & 0xffu);
}
TIE_DEVICE float e4m3_value(uint8_t bits) {
  return e4m3_to_float(bits);
}
TIE_DEVICE uint8_t e4m3_bits(float f) {
  constexpr float kMost = 448.0f;
  const float size = std::fmin(std::fabs(f), kMost);
  if (size == 0) return std::signbit(f) ? 0x80 : 0;
  int exponent = 0;
  std::frexp(size, &exponent);            // size = fraction * 2^exponent, fraction from 1/2
  exponent = std::max(exponent - 1, -6);  // of the code's leading bit; below, codes are even steps
  // Eighths of that bit; a carry out of them runs into the exponent as it should.
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  const int code = (exponent + 6) * 8 + steps;
  return static_cast<uint8_t>(code | (std::signbit(f) ? 0x80 : 0));
}
#endif

TIE_DEVICE float bf16_value(uint32_t bits) {
  return as_float(bits << 16);
}
// Nearest even; NaN is not expected.
TIE_DEVICE uint32_t bf16_bits(float f) {
  const uint32_t bits = as_bits(f);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

struct alignas(16) Bytes16 {
  uint32_t word[4];
};

#ifdef __CUDACC__
// The block as the processor runs it.
struct Block {
  TIE_DEVICE uint32_t thread() const { return threadIdx.x; }
  TIE_DEVICE uint32_t threads() const { return blockDim.x; }
  TIE_DEVICE uint32_t block_x() const { return blockIdx.x; }
  TIE_DEVICE uint32_t block_y() const { return blockIdx.y; }
  TIE_DEVICE uint32_t block_z() const { return blockIdx.z; }
  TIE_DEVICE uint32_t blocks_x() const { return gridDim.x; }
  TIE_DEVICE void sync() const { __syncthreads(); }
  TIE_DEVICE float shuffle_xor(float v, uint32_t mask) const { return __shfl_xor_sync(0xffffffffu, v, mask); }
  TIE_DEVICE uint32_t shuffle_xor(uint32_t v, uint32_t mask) const { return __shfl_xor_sync(0xffffffffu, v, mask); }
  template <typename T>
  TIE_DEVICE T* shared(uint32_t byte_offset, uint32_t) const {
    extern __shared__ __align__(16) unsigned char tie_shared[];
    return reinterpret_cast<T*>(tie_shared + byte_offset);
  }
  // d += a * b for a 16 x 16 tile of a and a 16 x 8 tile of b, bf16 in, float out; fragments as PTX lays them out.
  TIE_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
#endif

// Sum and maximum over a warp; every lane gets the result. The order is fixed.
template <typename Block>
TIE_DEVICE float warp_sum(Block& b, float v) {
  for (uint32_t mask = 16; mask != 0; mask >>= 1) v += b.shuffle_xor(v, mask);
  return v;
}
template <typename Block>
TIE_DEVICE float warp_max(Block& b, float v) {
  for (uint32_t mask = 16; mask != 0; mask >>= 1) v = fmaxf(v, b.shuffle_xor(v, mask));
  return v;
}

// Sum over the block; `offset`: 128 bytes of shared memory for this alone. Every thread gets the result.
template <typename Block>
TIE_DEVICE float block_sum(Block& b, float v, uint32_t offset) {
  auto parts = b.template shared<float>(offset, 32);
  v = warp_sum(b, v);
  b.sync();  // the last use of `parts` is over
  if (b.thread() % kWarp == 0) parts[b.thread() / kWarp] = v;
  b.sync();
  float total = 0;
  for (uint32_t warp = 0; warp < b.threads() / kWarp; ++warp) total += parts[warp];
  return total;
}

// The largest of the block's (non-negative) numbers; as block_sum.
template <typename Block>
TIE_DEVICE float block_max(Block& b, float v, uint32_t offset) {
  auto parts = b.template shared<float>(offset, 32);
  v = warp_max(b, v);
  b.sync();
  if (b.thread() % kWarp == 0) parts[b.thread() / kWarp] = v;
  b.sync();
  float most = 0;
  for (uint32_t warp = 0; warp < b.threads() / kWarp; ++warp) most = fmaxf(most, parts[warp]);
  return most;
}

}  // namespace tie::bones::cuda
