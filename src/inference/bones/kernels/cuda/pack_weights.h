// Turns the rows of a file's matrix into the planes that the GPU kernels read (weight_formats.h). CPU side.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "inference/bones/kernels/cuda/weight_formats.h"
#include "inference/bones/model/architecture.h"

namespace tie::bones::cuda {

Format format_for(model_files::TensorType type);

// Where the planes of an n x k matrix lie in one run of bytes; each begins at a multiple of 256.
struct Planes {
  uint64_t codes = 0, high = 0, scales = 0, bytes = 0;
};
Planes planes_of(Format format, uint32_t n, uint32_t k);

// The matrix that these bytes hold, for kernels that see them at `base`.
Matrix matrix_at(Format format, uint32_t n, uint32_t k, const uint8_t* base);

// Packs the source's rows and inputs (a rank's part of them) to `out`, planes_of(...).bytes long.
void pack_matrix(const TensorSource& source, uint32_t rope_dim, ByteView data, std::span<uint8_t> out);

}  // namespace tie::bones::cuda
