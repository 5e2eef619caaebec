// Loops that reach the peak of one instruction each; every file beside this is compiled for its instruction set alone.
// Callers have made sure that the CPU has it. The multiply-adds of one iteration stand beside each.
#pragma once
#include <cstdint>

namespace tie::bench {

void avx2_int8(uint64_t n);  // 8 times vpmaddubsw, vpmaddwd, vpaddd: 8 * 32
void avx2_fp32(uint64_t n);  // 12 fused multiply-adds: 12 * 8
uint64_t avx2_read(const void* memory, uint64_t bytes);

void avx512_int8(uint64_t n);  // 12 dpbusd: 12 * 64
void avx512_bf16(uint64_t n);  // 12 dpbf16: 12 * 32
void avx512_fp32(uint64_t n);  // 12 fused multiply-adds: 12 * 16
uint64_t avx512_read(const void* memory, uint64_t bytes);

// Only where this process may use tiles.
void amx_int8(uint64_t n);  // 4 tdpbusd: 4 * 16 * 16 * 64
void amx_bf16(uint64_t n);  // 4 tdpbf16ps: 4 * 16 * 16 * 32

}  // namespace tie::bench
