// The few passes over a whole row of logits that sampling needs, vectorised for the instruction set found at start;
// those that a forward pass needs as well are bones'.
// Pure functions. NaN counts as minus infinity everywhere. One fixed order of additions per instruction set: results do
// not depend on the batch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/bones/ops/best_ids.h"

namespace tie::engine {

using bones::apply_mask, bones::argmax_of, bones::better, bones::Candidate, bones::collect_between, bones::kGroup,
    bones::max_of, bones::select_top;

inline constexpr size_t kSumBlock = 1024;

// out[i] = exp((row[i] - max) * scale), 0 below exp(-87); block_sums[b] = sum over out[b * kSumBlock ...]; returns the
// sum of all. out: row.size() floats, block_sums: one double per started block. max must be finite, scale above 0.
double exponentials(std::span<const float> row, float max, float scale, float* out, double* block_sums);

// log(sum(exp(row))); -infinity when no element is a number.
float log_sum_exp(std::span<const float> row, float* scratch, double* block_sums);

// Sum of masses[i] over all i with row[i] > threshold.
double mass_above(std::span<const float> row, const float* masses, float threshold);
// The same for several thresholds in one pass over the row.
inline constexpr size_t kThresholds = 3;
void masses_above(std::span<const float> row, const float* masses, const float (&thresholds)[kThresholds],
                  double (&totals)[kThresholds]);
// masses[i] = 0 wherever row[i] < threshold; block_sums as above; returns the sum of what is left.
double keep_from(std::span<const float> row, float threshold, float* masses, double* block_sums);

}  // namespace tie::engine
