// Rotary angles: frequencies of a RopeConfig, and cos/sin of a position. Source: RoFormer; YaRN paper for the ramp;
// factors divide the frequency.
#pragma once
#include <cstdint>
#include <vector>

#include "inference/bones/model_config.h"

namespace tie::bones {

struct RopeFrequencies {
  std::vector<double> per_pair;  // radians per position, rope_dim / 2 of them
  float magnitude = 1.0f;        // multiplies cos and sin
};

// `factors`: rope_dim / 2 divisors or null.
RopeFrequencies rope_frequencies(const RopeConfig& config, uint32_t rope_dim, const float* factors);

void rope_table(const RopeFrequencies& frequencies, uint32_t position, float* cos, float* sin);

}  // namespace tie::bones
