// Safetensors folders on a GPU (the emulated driver): imported as `tie model add` does, written
// to GPU memory as tie-model-owner does, run a token at a time. Float32 weights give the logits of `transformers`
// (tests/data/model_reference) but for the cache's 16-bit keys and values and the order of sums; the bound is twice the
// CPU's (reference_test.cc), because attention multiplies in 16 bits, too. 16-bit checkpoints reach the GPU bit for bit
// and give what the CPU makes of the same file. Eight-bit weights have the CPU's bound.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/half_float.h"
#include "inference/bones/cuda/cuda_model.h"
#include "inference/bones/cuda/device_weights.h"
#include "inference/bones/single_sequence.h"
#include "model_import/import.h"
#include "model_import/testing/hf_folder_writer.h"
#include "os/memfd.h"

namespace tie::model_import {
namespace {

namespace fs = std::filesystem;
using namespace bones::cuda;
using testing::Precision;

using Rows = std::vector<std::vector<float>>;

const nlohmann::json& reference() {
  static const nlohmann::json all =
      nlohmann::json::parse(std::ifstream(TIE_SOURCE_DIR "/tests/data/model_reference/reference.json"));
  return all;
}

// The emulated driver runs every thread of every block by itself: a few tokens, a family of each kind.
constexpr size_t kTokens = 8;
const auto kFamilies = ::testing::Values("llama", "qwen3", "gemma3", "phi3", "mixtral", "qwen3moe");
const auto kDenseAndExperts = ::testing::Values("llama", "qwen3moe");

std::shared_ptr<Driver> driver() {
  static const auto one = Driver::load(0, TIE_FAKE_CUDA).value();
  return one;
}

// Logits of every position, one token at a time.
Result<Rows> on_the_gpu(LoadedWeights weights, const std::vector<int32_t>& tokens) {
  const CudaModelOptions options{.max_batch_rows = 16, .max_logit_rows = 4, .max_sequences = 2, .max_table_blocks = 64};
  const bones::ModelConfig config = weights.table.config;
  TIE_TRY(CudaModel model, CudaModel::attach(driver(), {}, weights.table, std::move(weights.memory), options));
  DeviceKvPool kv;
  TIE_TRY(kv.layout, bones::KvLayout::for_model(config, bones::KvType::kF16));
  kv.n_blocks = 8;
  TIE_TRY(const DeviceMemory memory, DeviceMemory::allocate(driver(), kv.n_blocks * kv.layout.block_bytes()));
  kv.base = memory.at();
  const std::vector<uint32_t> blocks{5, 2, 7, 0};
  const uint32_t row = 0;
  Rows out;
  for (uint32_t at = 0; at < tokens.size(); ++at) {
    const bones::SequenceSpan span{0, 1, at, blocks};
    TIE_TRY(const bones::Logits logits,
            model.forward({std::span(tokens).subspan(at, 1), {&span, 1}, {&row, 1}, {}}, kv));
    out.emplace_back(logits.row(0).begin(), logits.row(0).end());
  }
  return out;
}

Rows on_the_cpu(ByteView file, const std::vector<int32_t>& tokens) {
  auto model = bones::SingleSequence::from_gguf(file, {.n_threads = 1, .kernels = "reference", .max_tokens = 128});
  EXPECT_TRUE(model) << model.error().message;
  Rows rows;
  auto visit = [](void* context, uint32_t, std::span<float> logits) {
    static_cast<Rows*>(context)->emplace_back(logits.begin(), logits.end());
  };
  EXPECT_TRUE(model->append_each(tokens, 0, visit, &rows));
  return rows;
}

struct Difference {
  std::vector<double> worst;  // of each position, ascending
  double square = 0;
  size_t n = 0;

  void add(const std::vector<double>& expected, const std::vector<float>& ours) {
    ASSERT_EQ(expected.size(), ours.size());
    double here = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      here = std::max(here, std::fabs(ours[i] - expected[i]));
      square += expected[i] * expected[i];
    }
    n += expected.size();
    worst.insert(std::upper_bound(worst.begin(), worst.end(), here), here);
  }
  double spread() const { return std::sqrt(square / static_cast<double>(n)); }
};

class GpuImport : public ::testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { fs::remove_all(folder_); }
  // The folder, its file, and the file's weights on the GPU.
  void load(Precision precision, WeightFormat format) {
    for (const auto& one : reference().at("cases"))
      if (one.at("name") == GetParam()) golden_ = &one;
    tokens_ = golden_->at("tokens").get<std::vector<int32_t>>();
    tokens_.resize(kTokens);
    shapes_ = golden_->at("shapes").get<testing::Shapes>();
    testing::write_folder(folder_, golden_->at("config"), shapes_, 1, precision);
    auto imported = import_folder(folder_, folder_ / "model.gguf", format);
    ASSERT_TRUE(imported) << imported.error().message;
    file_ = os::Mapping::file_read_only(folder_ / "model.gguf").value();
    auto loaded = load_weights(driver(), bytes());
    ASSERT_TRUE(loaded) << loaded.error().message;
    weights_ = std::move(*loaded);
  }
  ByteView bytes() const { return {reinterpret_cast<const uint8_t*>(file_.bytes().data()), file_.size()}; }

  void expect_transformers(double bound) {
    auto rows = on_the_gpu(std::move(weights_), tokens_);
    ASSERT_TRUE(rows) << rows.error().message;
    Difference found;
    for (const auto& pair : golden_->at("logits"))
      if (pair[0].get<size_t>() < kTokens)
        found.add(pair[1].get<std::vector<double>>(), rows->at(pair[0].get<size_t>()));
    ASSERT_GE(found.worst.size(), 2u);
    const double worst = found.worst.back();
    std::printf("%s: spread %.3f, worst difference %.2f %%\n", GetParam().c_str(), found.spread(),
                100 * worst / found.spread());
    EXPECT_LT(worst, bound * found.spread());
  }

  const nlohmann::json* golden_ = nullptr;
  const fs::path folder_ = fs::temp_directory_path() / ("tie_gpu_reference_test." + std::to_string(::getpid()));
  testing::Shapes shapes_;
  std::vector<int32_t> tokens_;
  os::Mapping file_;
  LoadedWeights weights_;
};

TEST_P(GpuImport, FloatWeightsGiveTheLogitsOfTransformers) {
  ASSERT_NO_FATAL_FAILURE(load(Precision::kF32, WeightFormat::kKeep));
  expect_transformers(0.01);
}

class GpuImportOfEach : public GpuImport {};

TEST_P(GpuImportOfEach, EightBitWeightsStayClose) {
  ASSERT_NO_FATAL_FAILURE(load(Precision::kF32, WeightFormat::kQ8_0));
  expect_transformers(0.16);
}

// The checkpoint's own 16 bits: the token table in GPU memory is the file's, and the CPU's logits of the same file are
// ours (the order of sums, and the 16 bits of keys, values and attention).
TEST_P(GpuImportOfEach, SixteenBitCheckpointsReachTheGpuBitForBit) {
  for (auto [precision, format] : {std::pair{Precision::kBf16, Format::kBf16}, {Precision::kF16, Format::kF16}}) {
    ASSERT_NO_FATAL_FAILURE(load(precision, WeightFormat::kKeep));
    const DeviceTensor* table = weights_.table.find(bones::Role::kEmbedding);
    ASSERT_NE(table, nullptr);
    EXPECT_EQ(table->format, format);
    const bool gemma = golden_->at("config").value("model_type", "").starts_with("gemma");
    Bytes there(uint64_t{table->n} * table->k * 2), expected;
    ASSERT_TRUE(driver()->check(
        driver()->copy_out_async(there.data(), weights_.memory.at() + table->offset, there.size(), nullptr),
        "reading"));
    for (float f : testing::reference_weights("model.embed_tokens.weight", {table->n, table->k}, gemma))
      for (const uint32_t bits : {precision == Precision::kF16 ? float_to_half(f) : float_to_bf16(f)})
        expected.insert(expected.end(), {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)});
    EXPECT_EQ(there, expected);
    auto rows = on_the_gpu(std::move(weights_), tokens_);
    ASSERT_TRUE(rows) << rows.error().message;
    const Rows cpu = on_the_cpu(bytes(), tokens_);
    ASSERT_EQ(cpu.size(), rows->size());
    Difference found;
    for (size_t i = 0; i < cpu.size(); ++i) found.add({cpu[i].begin(), cpu[i].end()}, (*rows)[i]);
    const double worst = found.worst.back();
    std::printf("%s, %s: worst difference %.2f %%\n", GetParam().c_str(), format == Format::kF16 ? "f16" : "bf16",
                100 * worst / found.spread());
    EXPECT_LT(worst, 0.01 * found.spread());
    fs::remove_all(folder_);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuImport, kFamilies, [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(All, GpuImportOfEach, kDenseAndExperts, [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tie::model_import
