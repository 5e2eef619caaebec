// The checks that stand between an image's bytes and the kernels, which check nothing.
#pragma once
#include <span>

#include "base/result.h"
#include "inference/bones/weights_image.h"

namespace tie::bones {

// Every tensor that the shard of `whole` needs is there exactly once, with its shape, a packing that fits it, and bytes
// inside [first_byte, image_bytes).
Result<void> check_entries(const ModelConfig& whole, const Shard& shard, std::span<const TensorEntry> entries,
                           uint64_t first_byte, uint64_t image_bytes);

}  // namespace tie::bones
