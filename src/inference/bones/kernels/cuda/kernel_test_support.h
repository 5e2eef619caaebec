// What the tests of kernel bodies share: running a kernel by name on the emulator in several orders of its threads, and
// random matrices of every format with their weights as doubles. For tests alone.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "inference/bones/kernels/cuda/emulator/emulated_kernels.h"
#include "inference/bones/kernels/cuda/pack_weights.h"
#include "inference/bones/model/quant_blocks.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones::cuda {

using model_files::TensorType;

template <typename Args>
void run(const std::string& name, const Args& args, Dim3 grid, uint32_t shared_bytes, uint64_t seed) {
  const EmulatedKernel* kernel = find_emulated_kernel(name);
  ASSERT_NE(kernel, nullptr) << name;
  ASSERT_EQ(kernel->args_bytes, sizeof(Args));
  auto ran =
      BlockEmulator().run({.grid = grid, .threads = kernel->threads, .shared_bytes = shared_bytes, .order_seed = seed},
                          [&](EmulatedBlock& b) { kernel->body(b, &args); });
  ASSERT_TRUE(ran) << name << ": " << ran.error().message;
}

// Runs `go(seed)` in ascending, descending and random order; `out` must come out the same.
template <typename T, typename Go>
void run_in_orders(std::vector<T>& out, Go go) {
  const std::vector<T> before = out;
  go(0);
  const std::vector<T> first = out;
  for (uint64_t seed : {1, 7}) {
    out = before;
    go(seed);
    ASSERT_EQ(std::memcmp(out.data(), first.data(), first.size() * sizeof(T)), 0) << "depends on the order of threads";
  }
}

inline std::vector<float> random_floats(size_t n, uint32_t seed, float spread = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(n);
  for (float& f : out) f = normal(random);
  return out;
}

// A random matrix of a tiny model's file: its weights as doubles and in GPU planes.
struct TestMatrix {
  Format format;
  Bytes planes;
  std::vector<double> w;
  Matrix matrix;
};

inline TestMatrix test_matrix(TensorType type, uint32_t n, uint32_t k) {
  testing::TinyModelOptions o;
  o.architecture = "qwen2";  // heads in the file's order
  o.n_layers = 1;
  o.weights = type;
  o.embedding = TensorType::kF32;
  o.n_embd = k;
  o.n_heads = 8;  // K quantisations come in blocks of 256
  o.head_dim = 32;
  o.n_ff = (n + 255) / 256 * 256;
  const Bytes file = testing::tiny_model(o);
  const auto gguf = *model_files::Gguf::parse(file);
  TensorSource source;
  source.tensor = gguf.find_tensor("blk.0.ffn_gate.weight");
  source.n = n;
  source.k = k;
  TestMatrix out;
  out.format = format_for(type);
  out.planes.resize(planes_of(out.format, n, k).bytes);
  const ByteView data = gguf.tensor_data(*source.tensor);
  pack_matrix(source, 0, data, out.planes);
  const auto* info = model_files::tensor_type_info(type);
  for (uint32_t r = 0; r < n; ++r) {
    const uint8_t* row = data.data() + size_t{r} * k / info->block_elements * info->block_bytes;
    for (uint32_t i = 0; i < k; ++i) {
      if (info->block_elements == 1) {
        out.w.push_back(read_float(type, row, i));
        continue;
      }
      const QuantBlock block = read_block(type, row, i / 32);
      const int offset = out.format == Format::kQ6 ? 32 : out.format == Format::kQ8 ? 128 : 0;
      // K quantisations multiply two scales; the planes keep the product as f16.
      const double scale = half_value(half_bits(block.scale[i % 32 / 16])),
                   minimum = half_value(half_bits(block.minimum));
      const bool has_minimum = out.format == Format::kQ4 || out.format == Format::kQ5;
      out.w.push_back(scale * (block.code[i % 32] - offset) + (has_minimum ? minimum : 0.0));
    }
  }
  out.matrix = matrix_at(out.format, n, k, out.planes.data());
  return out;
}

inline std::string suffix(Format format) {
  constexpr const char* names[] = {"_f32", "_f16", "_bf16", "_q8", "_q4", "_q5", "_q6"};
  return names[static_cast<uint32_t>(format)];
}

inline double dot(const TestMatrix& m, uint32_t row, const float* x) {
  double sum = 0;
  for (uint32_t i = 0; i < m.matrix.k; ++i) sum += m.w[size_t{row} * m.matrix.k + i] * x[i];
  return sum;
}
inline double magnitude(const TestMatrix& m, uint32_t row, const float* x) {
  double sum = 0;
  for (uint32_t i = 0; i < m.matrix.k; ++i) sum += std::fabs(m.w[size_t{row} * m.matrix.k + i] * x[i]);
  return sum;
}

}  // namespace tie::bones::cuda
