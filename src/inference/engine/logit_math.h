// The few passes over a whole row of logits that sampling needs, vectorised for the instruction set found at start.
// Pure functions. NaN counts as minus infinity everywhere. One fixed order of additions per instruction set: results do
// not depend on the batch.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tie::engine {

struct Candidate {
  float logit = 0;
  int32_t token = 0;
};

// -infinity for an empty row or one without a number.
float max_of(std::span<const float> row);

// The lowest index that holds the maximum; -1 when no element is above -infinity.
int32_t argmax_of(std::span<const float> row);

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

// row[i] = -infinity wherever bit i of mask (32 bits a word, lowest first) is 0.
void apply_mask(std::span<float> row, std::span<const uint32_t> mask);

inline constexpr size_t kGroup = 64;

// The maximum of each started group of kGroup elements. (A group with NaN may be told too low.)
void group_maxima(std::span<const float> row, std::vector<float>& out);

// Appends the elements in (low, high] from index `from` on, in order, while `out` surely stays within `most` elements.
// Returns where to go on; row.size() when done.
size_t collect_between(std::span<const float> row, size_t from, float low, float high, size_t most,
                       std::vector<Candidate>& out);

}  // namespace tie::engine
