// What the set "avx512fp16" has of its own; the rest is the AVX-512 set's.
#pragma once
#include "inference/bones/kernels/kernel_set.h"

namespace tie::bones::avx512fp16 {

bool takes(const AttentionJob& job);  // f16 cache, head_dim a multiple of 32; else the AVX-512 kernel does it
void prepare_queries(const AttentionJob& job);
void attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out);

}  // namespace tie::bones::avx512fp16
