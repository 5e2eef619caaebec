// What a TensorMap holds on the emulator: written by the fake driver's cuTensorMapEncodeTiled and by tests.
#pragma once
#include <cstdint>
#include <cstring>

#include "inference/bones/kernels/cuda/tensor_core/descriptors.h"

namespace tie::bones::cuda {

// Elements of 16 bits; dimension 0 is contiguous; stride[0] is not used.
struct EmulatedTensorMap {
  uint64_t base = 0, size[4] = {}, stride[4] = {};
  uint32_t box[4] = {}, rank = 0;
};
static_assert(sizeof(EmulatedTensorMap) <= sizeof(TensorMap));

inline TensorMap emulated_map(const EmulatedTensorMap& m) {
  TensorMap out{};
  std::memcpy(out.bytes, &m, sizeof m);
  return out;
}

}  // namespace tie::bones::cuda
