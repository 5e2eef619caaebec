// The weights in GPU memory are those of the image that the CPU's kernels read: the same tensors, the same numbers.
#include "inference/bones/cuda/device_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "inference/bones/kernels/cuda/pack_weights.h"
#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/testing/tiny_model.h"
#include "inference/bones/weights_image.h"

namespace tie::bones::cuda {
namespace {

using model_files::TensorType;

// A row as the GPU's kernels unpack it.
template <Format kFormat>
std::vector<float> unpacked_row(const Matrix& m, uint32_t row) {
  std::vector<float> out;
  for (uint32_t half = 0; half < m.k / 16; ++half) {
    float w[16];
    load_half_block<kFormat>(m, row, half / 2, half % 2, w);
    out.insert(out.end(), w, w + 16);
  }
  return out;
}

std::vector<float> gpu_row(const DeviceTensor& t, const uint8_t* at, uint32_t row) {
  const Matrix m = matrix_at(t.format, t.n, t.k, at);
  switch (t.format) {
    case Format::kF32:
      return unpacked_row<Format::kF32>(m, row);
    case Format::kF16:
      return unpacked_row<Format::kF16>(m, row);
    case Format::kBf16:
      return unpacked_row<Format::kBf16>(m, row);
    case Format::kQ8:
      return unpacked_row<Format::kQ8>(m, row);
    case Format::kQ4:
      return unpacked_row<Format::kQ4>(m, row);
    case Format::kQ5:
      return unpacked_row<Format::kQ5>(m, row);
    case Format::kQ6:
      return unpacked_row<Format::kQ6>(m, row);
  }
  return {};
}

// Of a four-bit column the CPU keeps integer scales of up to 8191, off by half a unit, times codes of up to 8 from the
// middle and 8 for the minimum: 8 / 8191 of the column's largest scale. The GPU rounds scales to f16, by 2^-11 of them.
double tolerance(Format format, const std::vector<float>& row) {
  double most = 0;
  for (float f : row) most = std::max(most, std::fabs(double{f}));
  const bool whole = format == Format::kF32 || format == Format::kF16 || format == Format::kBf16;
  return whole ? 0 : format == Format::kQ4 ? most * 2e-3 : most * 1e-3;
}

void compare(const testing::TinyModelOptions& o) {
  const Bytes file = testing::tiny_model(o);
  const auto owned = OwnedImage::from_gguf(file);
  ASSERT_TRUE(owned) << owned.error().message;
  const auto image = WeightsImage::attach(owned->bytes());
  ASSERT_TRUE(image);
  const auto driver = Driver::load(0, TIE_FAKE_CUDA);
  ASSERT_TRUE(driver);
  const auto loaded = load_weights(*driver, file);
  ASSERT_TRUE(loaded) << loaded.error().message;
  ASSERT_EQ(loaded->table.tensors.size(), image->tensors().size());
  EXPECT_EQ(std::memcmp(&loaded->table.config, &image->config(), sizeof(ModelConfig)), 0);
  for (const TensorEntry& entry : image->tensors()) {
    const DeviceTensor* t = loaded->table.find(entry.role, entry.layer);
    ASSERT_NE(t, nullptr) << role_name(entry.role);
    ASSERT_EQ(t->n, entry.n);
    ASSERT_EQ(t->k, entry.k);
    const auto* at = reinterpret_cast<const uint8_t*>(loaded->memory.at() + t->offset);  // emulated: here as well
    if (entry.k == 1) {
      EXPECT_EQ(std::memcmp(at, image->data(entry), entry.n * sizeof(float)), 0) << role_name(entry.role);
      continue;
    }
    const PackedMatrix packed{entry.packing, entry.n, entry.k, image->data(entry)};
    for (uint32_t row = 0; row < entry.n; row += row % 7 + 1) {
      std::vector<float> expected(entry.k);
      gather_row(packed, row, expected.data());
      const auto found = gpu_row(*t, at, row);
      const double most = tolerance(t->format, expected);
      for (uint32_t i = 0; i < entry.k; ++i)
        ASSERT_LE(std::fabs(double{found[i]} - expected[i]), most) << role_name(entry.role) << " " << row << " " << i;
    }
  }
}

TEST(DeviceWeights, AreTheNumbersOfTheCpusImageInEveryFormat) {
  for (TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
        TensorType::kQ4_K, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ5_K, TensorType::kQ6_K}) {
    testing::TinyModelOptions o;
    o.n_layers = 1;
    o.weights = o.embedding = type;
    o.n_embd = o.n_ff = 256, o.n_heads = 4, o.head_dim = 64;
    compare(o);
  }
}

TEST(DeviceWeights, AreTheNumbersOfTheCpusImageInEveryFamily) {
  for (const char* family : {"llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"}) {
    testing::TinyModelOptions o;
    o.architecture = family;
    o.weights = TensorType::kQ4_1;
    o.tied = false;
    compare(o);
  }
}

}  // namespace
}  // namespace tie::bones::cuda
