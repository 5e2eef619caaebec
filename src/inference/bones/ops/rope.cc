#include "inference/bones/ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tie::bones {
namespace {

// The (fractional) pair whose wavelength makes `rotations` turns over the original context.
double pair_of_rotations(const RopeConfig& c, uint32_t rope_dim, double rotations) {
  return rope_dim * std::log(c.original_context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(c.base)));
}

}  // namespace

RopeFrequencies rope_frequencies(const RopeConfig& c, uint32_t rope_dim, const float* factors) {
  RopeFrequencies out;
  out.magnitude = c.attention_factor;
  const bool yarn = c.scaling == RopeScaling::kYarn;
  const double low = yarn ? std::max(0.0, std::floor(pair_of_rotations(c, rope_dim, c.yarn_beta_fast))) : 0;
  const double high = yarn ? std::min(rope_dim - 1.0, std::ceil(pair_of_rotations(c, rope_dim, c.yarn_beta_slow))) : 0;
  if (yarn && c.yarn_ext_factor != 0) out.magnitude *= 1.0f + 0.1f * std::log(c.factor);
  for (uint32_t i = 0; i < rope_dim / 2; ++i) {
    double frequency = std::pow(static_cast<double>(c.base), -2.0 * i / rope_dim);
    if (factors && factors[i] != 0) frequency /= factors[i];
    if (c.scaling == RopeScaling::kLinear) frequency /= c.factor;
    if (yarn) {
      const double ramp = (1 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0)) * c.yarn_ext_factor;
      frequency = frequency / c.factor * (1 - ramp) + frequency * ramp;
    }
    out.per_pair.push_back(frequency);
  }
  return out;
}

void rope_table(const RopeFrequencies& frequencies, uint32_t position, float* cos, float* sin) {
  for (size_t i = 0; i < frequencies.per_pair.size(); ++i) {
    const double angle = position * frequencies.per_pair[i];
    cos[i] = static_cast<float>(std::cos(angle)) * frequencies.magnitude;
    sin[i] = static_cast<float>(std::sin(angle)) * frequencies.magnitude;
  }
}

}  // namespace tie::bones
