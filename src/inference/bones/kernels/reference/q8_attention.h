// The reference's part for the 8-bit cache (../q8_cache.h).
#pragma once
#include "inference/bones/kernels/kernel_set.h"

namespace tie::bones::reference {
void q8_turn(const float* from, uint32_t head_dim, float* to);
void q8_store(const StoreKvJob& job);
void q8_attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out);
}  // namespace tie::bones::reference
