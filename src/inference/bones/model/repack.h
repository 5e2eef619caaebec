// Turns the blocks of a GGUF matrix into packed strips (kernels/tile.h), and vectors into floats. Sizes are checked by
// the caller.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "inference/bones/model/architecture.h"
#include "inference/bones/weights_image.h"

namespace tie::bones {

Packing packing_for(model_files::TensorType type);

// Row of the file's matrix that becomes row `row` of the packed one.
uint32_t file_row(const TensorSource& source, uint32_t rope_dim, uint32_t row);

// Bytes of the packed tensor, a multiple of 64.
uint64_t packed_bytes(Packing packing, uint32_t n, uint32_t k);

// Fills strips [first, last) at `out`, the start of the packed tensor. `data` holds the whole file tensor.
void repack_strips(const TensorSource& source, uint32_t rope_dim, ByteView data, uint32_t first, uint32_t last,
                   std::byte* out);

// Fills n floats.
void repack_vector(const TensorSource& source, uint32_t rope_dim, ByteView data, float* out);

}  // namespace tie::bones
