// Parts of the AVX-512 kernel set that live in files of their own.
#pragma once
#include "inference/bones/kernels/kernel_set.h"

namespace tie::bones::avx512 {
void quantised_matmul(const MatmulJob& job);  // packings Q4, Q5, Q6, Q8
void folded_matmul(const MatmulJob& job);     // Q4, few rows
void panel_matmul(const MatmulJob& job);      // more than kFusedRows rows; the former calls both
uint32_t quantize(const QuantizeJob& job);    // how many of the job's blocks it did, from the first: often all
}  // namespace tie::bones::avx512
