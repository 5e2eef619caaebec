// Random numbers that are a pure function of (seed, sample, position): a request draws the same numbers alone, in any
// batch, after preemption and with speculation, because nothing is carried from one draw to the next. Source:
// Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once
#include <cstdint>

namespace tie::engine {

uint64_t counter_random(uint64_t seed, uint32_t sample, uint64_t position);
// [0, 1) with 53 bits.
inline double counter_uniform(uint64_t seed, uint32_t sample, uint64_t position) {
  return static_cast<double>(counter_random(seed, sample, position) >> 11) * 0x1.0p-53;
}

}  // namespace tie::engine
