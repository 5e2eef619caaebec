// The AMX products on emulated tiles (on every machine with AVX-512) and on the CPU's (where it has them), bit for bit
// against the plain ones; who is told what where AMX cannot be used; whole models.
#include "inference/bones/kernels/amx/amx.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "inference/bones/kernels/amx/amx_state.h"
#include "inference/bones/kernels/amx/emulated_tiles.h"
#include "inference/bones/kernels/kernel_choice.h"
#include "inference/bones/model.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones {
namespace {

#define TIE_NEEDS_AVX512()                                                     \
  if (!choose_kernel_set("amx_emulated")) {                                    \
    GTEST_SKIP() << "this CPU has no AVX-512: the AMX kernels are not tested"; \
  }

bool yes() {
  return true;
}
bool no() {
  return false;
}
bool never() {
  ADD_FAILURE() << "asked although an earlier answer was no";
  return true;
}
void computes_nothing(const MatmulJob&) {}
void one_bit_wrong(const MatmulJob& job) {
  amx::matmul_emulated(job);
  uint32_t bits;
  float& last = job.out[(job.x->rows - 1) * job.out_stride + job.w.n - 1];
  std::memcpy(&bits, &last, 4);
  bits ^= 1;
  std::memcpy(&last, &bits, 4);
}
void never_called(const MatmulJob&) {
  ADD_FAILURE() << "a product without permission";
}

TEST(AmxState, TheFirstNoDecides) {
  using amx::State;
  EXPECT_EQ(amx::judge({no, never, never, never_called}), State::kNoHardware);
  EXPECT_EQ(amx::judge({yes, no, never, never_called}), State::kNotSaved);
  EXPECT_EQ(amx::judge({yes, yes, no, never_called}), State::kRefused);
  EXPECT_EQ(amx::judge({yes, yes, yes, computes_nothing}), State::kWrong);
  for (const State state : {State::kNoHardware, State::kNotSaved, State::kRefused, State::kWrong})
    EXPECT_FALSE(amx::reason(state).empty());
  EXPECT_TRUE(amx::reason(State::kReady).empty());
  for (const State state : {State::kNotSaved, State::kRefused, State::kWrong}) EXPECT_FALSE(amx::word(state).empty());
  EXPECT_TRUE(amx::word(State::kReady).empty() && amx::word(State::kNoHardware).empty());
}

TEST(AmxState, AProductWithOneWrongBitIsNotUsed) {
  TIE_NEEDS_AVX512();
  EXPECT_EQ(amx::judge({yes, yes, yes, amx::matmul_emulated}), amx::State::kReady);
  EXPECT_EQ(amx::judge({yes, yes, yes, one_bit_wrong}), amx::State::kWrong);
}

TEST(AmxState, AForcedSetThatCannotRunSaysWhy) {
  const auto state = amx::state();
  const auto set = choose_kernel_set("amx");
  if (state == amx::State::kReady) {
    ASSERT_TRUE(set);
    EXPECT_STREQ((*set)->name, "amx");
    EXPECT_EQ(*choose_kernel_set(""), *set) << "the fastest";
    return;
  }
  std::fprintf(stderr, "NOT TESTED ON HARDWARE: %s\n", std::string(amx::reason(state)).c_str());
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::kUnsupportedFeature);
  EXPECT_NE(set.error().message.find("amx"), std::string::npos);
  EXPECT_TRUE(set.error().message.find(amx::reason(state)) != std::string::npos ||
              set.error().message.find("AVX-512") != std::string::npos)
      << set.error().message;
  for (const KernelSet* runnable : runnable_kernel_sets()) EXPECT_STRNE(runnable->name, "amx");
  EXPECT_EQ(kernel_set_note().empty(), state == amx::State::kNoHardware || !choose_kernel_set("avx512"));
}

TEST(Amx, TilesAreReleasedAndNoInstructionWasRefused) {
  TIE_NEEDS_AVX512();
  EXPECT_TRUE(amx::products_are_right(amx::matmul_emulated));
  EXPECT_EQ(amx::emulated::fault(), nullptr) << amx::emulated::fault();
  EXPECT_FALSE(amx::emulated::configured()) << "a thread keeps its tiles";
}

TEST(Amx, FewRowsKeepTheTilesOfTheOtherSets) {
  EXPECT_EQ(amx::tile_rows(1), rows_per_tile(1));
  EXPECT_EQ(amx::tile_rows(amx::kLeastRows - 1), rows_per_tile(amx::kLeastRows - 1));
  EXPECT_EQ(amx::tile_rows(amx::kLeastRows), kAmxTileRows);
  EXPECT_EQ(amx::tile_rows(512), kAmxTileRows);
}

// Logits of a prompt, cut into the given chunks.
std::vector<std::vector<float>> logits_of(const Bytes& gguf, std::string_view kernels,
                                          const std::vector<uint32_t>& chunks) {
  ThreadPool pool({2});
  auto image = OwnedImage::from_gguf(gguf, &pool);
  EXPECT_TRUE(image) << image.error().message;
  ModelOptions options;
  options.pool = &pool, options.kernels = kernels, options.max_batch_rows = options.max_logit_rows = 128;
  auto model = Model::attach(image->bytes(), options);
  EXPECT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->kernels(), kernels);
  KvPool kv;
  kv.layout = *KvLayout::for_model(model->config(), KvType::kF16, 16);
  kv.n_blocks = 16;
  std::vector<std::byte> memory(kv.n_blocks * kv.layout.block_bytes() + 64);
  kv.base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  std::vector<uint32_t> table(kv.n_blocks);
  std::iota(table.begin(), table.end(), 0u);
  std::mt19937 random(3);
  std::vector<std::vector<float>> out;
  uint32_t done = 0;
  for (const uint32_t rows : chunks) {
    std::vector<int32_t> tokens(rows);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 300);
    std::vector<uint32_t> wanted(rows);
    std::iota(wanted.begin(), wanted.end(), 0u);
    const SequenceSpan span{0, rows, done, table};
    auto logits = model->forward({tokens, {&span, 1}, wanted, {}}, kv);
    EXPECT_TRUE(logits) << logits.error().message;
    for (uint32_t r = 0; r < rows; ++r) out.emplace_back(logits->row(r).begin(), logits->row(r).end());
    done += rows;
  }
  return out;
}

TEST(Amx, AModelsLogitsAreThoseOfTheOtherSetsInAnyChunks) {
  TIE_NEEDS_AVX512();
  std::vector<std::string_view> sets{"amx_emulated"};
  if (choose_kernel_set("amx")) sets.push_back("amx");
  const std::string_view other = choose_kernel_set("avx512fp16") ? "avx512fp16" : "avx512";
  for (const auto* architecture : {"llama", "qwen3moe"}) {
    for (const auto type : {model_files::TensorType::kQ4_1, model_files::TensorType::kQ8_0}) {
      testing::TinyModelOptions tiny;
      tiny.architecture = architecture, tiny.weights = type, tiny.head_dim = 32;
      const Bytes gguf = testing::tiny_model(tiny);
      const auto expected = logits_of(gguf, other, {101});
      for (const auto set : sets) {
        EXPECT_EQ(logits_of(gguf, set, {101}), expected) << set << " " << architecture;
        EXPECT_EQ(logits_of(gguf, set, {40, 3, 58}), expected) << set << " " << architecture;
      }
    }
  }
}

}  // namespace
}  // namespace tie::bones
