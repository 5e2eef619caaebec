// Whole tiny models: every architecture and quantisation runs, kernel sets agree to the bit, results do not depend on
// batch, chunks or block numbers, and every wrong batch is refused with a reason.
#include "inference/bones/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <tuple>

#include "inference/bones/kernels/kernel_choice.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones {
namespace {

using model_files::TensorType;
using testing::tiny_model;
using testing::TinyModelOptions;

struct Rig {
  ThreadPool pool;
  OwnedImage image;
  std::unique_ptr<Model> model;
  std::vector<std::byte> memory;
  KvPool kv;

  explicit Rig(const TinyModelOptions& options, std::string_view kernels = {}, uint32_t threads = 2,
               uint32_t n_blocks = 64, KvType type = KvType::kF16)
      : pool({threads}) {
    auto packed = OwnedImage::from_gguf(tiny_model(options), &pool);
    EXPECT_TRUE(packed) << packed.error().message;
    image = std::move(*packed);
    ModelOptions model_options;
    model_options.pool = &pool, model_options.kernels = kernels, model_options.max_batch_rows = 320,
    model_options.max_logit_rows = 320;
    auto attached = Model::attach(image.bytes(), model_options);
    EXPECT_TRUE(attached) << attached.error().message;
    model = std::make_unique<Model>(std::move(*attached));
    kv.layout = *KvLayout::for_model(model->config(), type, 16);
    kv.n_blocks = n_blocks;
    memory.resize(n_blocks * kv.layout.block_bytes() + 64);
    kv.base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  }
};

using Rows = std::vector<std::vector<float>>;

struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> table;
  uint32_t done = 0;
  Rows logits;  // of every position
};

std::vector<int32_t> random_tokens(std::mt19937& random, uint32_t n) {
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % 300);
  return tokens;
}

// One forward pass over the next `rows[i]` tokens of each sequence, all logits kept.
void step(Rig& rig, std::vector<Sequence>& all, const std::vector<uint32_t>& rows) {
  std::vector<int32_t> tokens;
  std::vector<SequenceSpan> spans;
  std::vector<uint32_t> owner;
  for (size_t i = 0; i < all.size(); ++i) {
    if (rows[i] == 0) continue;
    spans.push_back({static_cast<uint32_t>(tokens.size()), rows[i], all[i].done, all[i].table});
    for (uint32_t r = 0; r < rows[i]; ++r)
      tokens.push_back(all[i].tokens[all[i].done + r]), owner.push_back(static_cast<uint32_t>(i));
  }
  std::vector<uint32_t> logit_rows(tokens.size());
  std::iota(logit_rows.begin(), logit_rows.end(), 0u);
  auto logits = rig.model->forward({tokens, spans, logit_rows, {}}, rig.kv);
  ASSERT_TRUE(logits) << logits.error().message;
  for (uint32_t r = 0; r < tokens.size(); ++r) {
    const auto row = logits->row(r);
    all[owner[r]].logits.emplace_back(row.begin(), row.end());
  }
  for (size_t i = 0; i < all.size(); ++i) all[i].done += rows[i];
}

Rows alone(Rig& rig, const std::vector<int32_t>& tokens, uint32_t chunk = 128) {
  std::vector<Sequence> one(1);
  one[0].tokens = tokens;
  one[0].table.resize(rig.kv.n_blocks);
  std::iota(one[0].table.begin(), one[0].table.end(), 0u);
  while (one[0].done < tokens.size())
    step(rig, one, {std::min<uint32_t>(chunk, static_cast<uint32_t>(tokens.size()) - one[0].done)});
  return one[0].logits;
}

TinyModelOptions options_for(const std::string& architecture, TensorType weights) {
  TinyModelOptions o;
  o.architecture = architecture;
  o.weights = weights;
  if (weights == TensorType::kQ4_K || weights == TensorType::kQ5_K || weights == TensorType::kQ6_K) {
    o.n_embd = o.n_ff = 256;
    o.n_heads = 4, o.n_kv_heads = 2, o.head_dim = 64;
  }
  return o;
}

TinyModelOptions with_wide_heads(TinyModelOptions o) {  // wide enough for half-precision attention
  o.head_dim = 32;
  return o;
}

class Architectures : public ::testing::TestWithParam<std::string> {};

TEST_P(Architectures, EveryQuantisationGivesTheReferencesLogitsOnEveryKernelSet) {
  std::vector<TensorType> types{TensorType::kF32, TensorType::kQ4_1, TensorType::kQ6_K};
  if (GetParam() == "llama")
    types = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,
             TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1,
             TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K};
  for (TensorType type : types) {
    TinyModelOptions o = options_for(GetParam(), type);
    o.n_layers = GetParam() == "gemma3" ? 6 : 2;
    o.n_vocab = 300;
    o.tied = type != TensorType::kF32;
    std::mt19937 random(7);
    const auto tokens = random_tokens(random, 30);
    Rig reference(o, "reference"), half(o, "reference_fp16");
    const Rows expected = alone(reference, tokens), expected_half = alone(half, tokens);
    for (const auto& row : expected)
      for (float x : row) ASSERT_TRUE(std::isfinite(x));
    EXPECT_NE(expected[3], expected[29]);
    for (std::string_view name : available_kernel_sets()) {
      Rig rig(o, name);
      const bool in_half = &twin_of(**choose_kernel_set(name)) == &reference_fp16_kernels();
      EXPECT_EQ(alone(rig, tokens), in_half ? expected_half : expected)
          << GetParam() << " type " << static_cast<int>(type) << " kernels " << name;
    }
  }
}

TEST_P(Architectures, AnEightBitCacheGivesTheReferencesLogitsOnEveryKernelSet) {
  TinyModelOptions o = options_for(GetParam(), TensorType::kQ4_1);
  o.n_layers = GetParam() == "gemma3" ? 6 : 2;
  o.head_dim = 48;  // turned in parts of 16
  std::mt19937 random(8);
  const auto tokens = random_tokens(random, 30);
  Rig reference(o, "reference", 1, 64, KvType::kQ8);
  const Rows expected = alone(reference, tokens);
  for (std::string_view name : available_kernel_sets()) {
    Rig rig(o, name, 2, 64, KvType::kQ8);
    EXPECT_EQ(alone(rig, tokens), expected) << GetParam() << " kernels " << name;
  }
}

class Batches : public ::testing::TestWithParam<std::tuple<std::string, KvType>> {};

TEST_P(Batches, ALogitRowIsTheSameInAnyBatchAndAnyChunking) {
  const auto& [architecture, kv] = GetParam();
  TinyModelOptions o = with_wide_heads(options_for(architecture, TensorType::kQ4_1));
  o.n_layers = architecture == "gemma3" ? 6 : 2;
  std::mt19937 random(11);
  for (std::string_view name : available_kernel_sets()) {
    if (name == "reference") continue;
    Rig rig(o, name, 2, 128, kv);
    for (int trial = 0; trial < 3; ++trial) {
      std::vector<Sequence> all(1 + random() % 6);
      std::vector<Rows> expected;
      std::vector<uint32_t> blocks(rig.kv.n_blocks);
      std::iota(blocks.begin(), blocks.end(), 0u);
      std::shuffle(blocks.begin(), blocks.end(), random);
      for (Sequence& s : all) {
        s.tokens = random_tokens(random, 1 + random() % (trial == 0 ? 300 : 60));
        expected.push_back(alone(rig, s.tokens));
      }
      for (Sequence& s : all) {
        const uint32_t need = rig.kv.layout.blocks_for(static_cast<uint32_t>(s.tokens.size()));
        s.table.assign(blocks.end() - need, blocks.end());
        blocks.resize(blocks.size() - need);
      }
      for (bool busy = true; busy;) {
        busy = false;
        std::vector<uint32_t> rows;
        uint32_t left = 128;
        for (const Sequence& s : all) {
          const auto rest = static_cast<uint32_t>(s.tokens.size()) - s.done;
          const uint32_t n = std::min({rest, random() % 3 == 0 ? 1u : static_cast<uint32_t>(random() % 30), left});
          rows.push_back(n);
          left -= n;
          busy |= rest > 0;
        }
        if (std::accumulate(rows.begin(), rows.end(), 0u) > 0) step(rig, all, rows);
      }
      for (size_t i = 0; i < all.size(); ++i)
        ASSERT_EQ(all[i].logits, expected[i]) << architecture << " " << name << " sequence " << i;
    }
  }
}

// Two threads take rows of their own through the layers: panels of 150 each, fused tiles of 18; of 150 and of 7
// columns.
TEST_P(Architectures, ALongPromptIsTheSameInOneChunkOrMany) {
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kF32}) {
    TinyModelOptions o = with_wide_heads(options_for(GetParam(), type));
    std::mt19937 random(13);
    const auto tokens = random_tokens(random, 300);
    Rig two(o, {}, 2), one(o, {}, 1);
    const Rows expected = alone(one, tokens, 300);
    EXPECT_EQ(alone(two, tokens, 300), expected);
    for (const uint32_t chunk : {150u, 37u, 7u}) EXPECT_EQ(alone(two, tokens, chunk), expected) << chunk;
  }
}

// Two threads take 13 sequences each through the layers, and share attention where depths are too uneven.
TEST_P(Batches, ALargeBatchOfSequencesGivesWhatEachGivesAlone) {
  const auto& [architecture, kv] = GetParam();
  const TinyModelOptions o = with_wide_heads(options_for(architecture, TensorType::kQ4_1));
  std::mt19937 random(17);
  for (std::string_view name : available_kernel_sets()) {
    if (name == "reference") continue;
    Rig rig(o, name, 2, 128, kv);
    for (const bool uneven : {false, true}) {
      std::vector<Sequence> all(26);
      std::vector<Rows> expected;
      uint32_t next_block = 0;
      for (Sequence& s : all) {
        s.tokens = random_tokens(random, uneven && &s < &all[4] ? 150 : 4 + random() % 12);
        expected.push_back(alone(rig, s.tokens));
      }
      for (Sequence& s : all) {
        s.table.resize(rig.kv.layout.blocks_for(static_cast<uint32_t>(s.tokens.size())));
        std::iota(s.table.begin(), s.table.end(), next_block);
        next_block += static_cast<uint32_t>(s.table.size());
      }
      ASSERT_LE(next_block, rig.kv.n_blocks);
      std::vector<uint32_t> rows;
      for (Sequence& s : all) {  // all but two tokens, one sequence at a time
        rows.assign(all.size(), 0);
        rows[static_cast<size_t>(&s - all.data())] = static_cast<uint32_t>(s.tokens.size()) - 2;
        step(rig, all, rows);
      }
      for (int i = 0; i < 2; ++i) step(rig, all, std::vector<uint32_t>(all.size(), 1));
      for (size_t i = 0; i < all.size(); ++i)
        ASSERT_EQ(all[i].logits, expected[i]) << architecture << " " << name << " sequence " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Architectures,
                         ::testing::Values("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"));

INSTANTIATE_TEST_SUITE_P(All, Batches,
                         ::testing::Combine(::testing::Values("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3",
                                                              "phi3"),
                                            ::testing::Values(KvType::kF16, KvType::kQ8)));

TEST(Model, LogitsDoNotDependOnTheNumberOfThreads) {
  std::mt19937 random(3);
  const auto tokens = random_tokens(random, 300);
  for (uint32_t window : {0u, 24u, 150u}) {  // 24: shorter than a block of keys
    TinyModelOptions o;
    if (window != 0) o.architecture = "gemma3", o.sliding_window = window;
    for (KvType kv : {KvType::kF16, KvType::kQ8}) {
      Rig one(o, {}, 1, 64, kv), three(o, {}, 3, 64, kv), nine(o, {}, 9, 64, kv);
      EXPECT_EQ(alone(one, tokens), alone(three, tokens));
      const Rows each = alone(one, tokens, 1);  // long decode spreads its key blocks over threads
      EXPECT_EQ(each, alone(three, tokens, 7)) << window;
      EXPECT_EQ(each, alone(nine, tokens, 2)) << window;  // threads without any
    }
  }
}

// 81 rows in tiles of 9 are nine shares.
TEST(Model, ThreadsMayOutnumberTheTilesOfABatch) {
  std::mt19937 random(19);
  const auto tokens = random_tokens(random, 81);
  for (std::string_view name : available_kernel_sets()) {
    if (name == "reference") continue;
    Rig one(TinyModelOptions{}, name, 1), ten(TinyModelOptions{}, name, 10);
    EXPECT_EQ(alone(ten, tokens), alone(one, tokens)) << name;
  }
}

// Each thread has a sequence of its own, and yet the key blocks of both are spread over the threads.
TEST(Model, FewHeadsOfDeepSequencesAreAttendedByAllThreads) {
  TinyModelOptions o;
  o.n_heads = 2, o.n_kv_heads = 1, o.n_layers = 8;
  std::mt19937 random(23);
  for (std::string_view name : available_kernel_sets()) {
    if (name == "reference") continue;
    Rig rig(o, name, 2);
    std::vector<Sequence> all(2);
    std::vector<Rows> expected;
    for (Sequence& s : all) {
      s.tokens = random_tokens(random, 400);
      expected.push_back(alone(rig, s.tokens));
    }
    for (uint32_t i = 0; i < 2; ++i) {
      all[i].table.resize(25);
      std::iota(all[i].table.begin(), all[i].table.end(), 25 * i);
      step(rig, all, {i == 0 ? 160u : 0u, i == 1 ? 160u : 0u});
    }
    while (all[0].done < 400) step(rig, all, {8, 8});
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(all[i].logits, expected[i]) << name << " sequence " << i;
  }
}

TEST(Model, ACopiedBlockRecordContinuesTheSequence) {
  Rig rig(TinyModelOptions{}, {}, 2, 64, KvType::kQ8);
  std::mt19937 random(5);
  const auto tokens = random_tokens(random, 50);
  const Rows expected = alone(rig, tokens);
  Sequence s;
  s.tokens = tokens, s.done = 48, s.table = {40, 41, 42, 43};
  for (uint32_t i = 0; i < 4; ++i) std::memcpy(rig.kv.block(40 + i), rig.kv.block(i), rig.kv.layout.block_bytes());
  std::vector<Sequence> all{s};
  step(rig, all, {2});
  EXPECT_EQ(all[0].logits[0], expected[48]);
  EXPECT_EQ(all[0].logits[1], expected[49]);
}

TEST(Model, BfloatCacheAndYarnRun) {
  TinyModelOptions o;
  o.yarn = true;
  Rig rig(o, {}, 2, 64, KvType::kBf16), reference(o, "reference", 2, 64, KvType::kBf16);
  std::mt19937 random(9);
  const auto tokens = random_tokens(random, 30);
  EXPECT_EQ(alone(rig, tokens), alone(reference, tokens));
}

TEST(Model, AGivenEmbeddingReplacesTheTokens) {
  Rig rig(TinyModelOptions{});
  const std::vector<int32_t> tokens{5, 6, 7};
  const std::vector<uint32_t> table{0}, rows{2};
  const SequenceSpan span{0, 3, 0, table};
  std::vector<float> values(rig.model->config().n_embd, 0.5f);
  const EmbeddingRow given{1, values.data()};
  auto run = [&](std::span<const int32_t> ids, std::span<const EmbeddingRow> embeddings) {
    auto logits = rig.model->forward({ids, {&span, 1}, rows, embeddings}, rig.kv);
    EXPECT_TRUE(logits);
    return std::vector<float>(logits->row(0).begin(), logits->row(0).end());
  };
  const std::vector<int32_t> other{5, 99, 7};
  EXPECT_NE(run(tokens, {}), run(tokens, {&given, 1}));
  EXPECT_EQ(run(tokens, {&given, 1}), run(other, {&given, 1}));
}

TEST(Model, RefusesEveryMalformedBatch) {
  Rig rig(TinyModelOptions{}, {}, 1);
  const std::vector<int32_t> tokens{1, 2, 3};
  const std::vector<uint32_t> table{0, 1}, wrong_block{64}, none;
  auto code = [&](std::span<const int32_t> ids, std::vector<SequenceSpan> spans, std::vector<uint32_t> rows) {
    const auto result = rig.model->forward({ids, spans, rows, {}}, rig.kv);
    return result ? Code::kOk : result.error().code;
  };
  EXPECT_EQ(code(tokens, {{0, 3, 0, table}}, {2}), Code::kOk);
  EXPECT_EQ(code(tokens, {{0, 3, 0, table}}, {3}), Code::kBadRequest);
  EXPECT_EQ(code(tokens, {{0, 3, 0, table}}, {1, 1}), Code::kBadRequest);
  EXPECT_EQ(code(tokens, {{0, 2, 0, table}}, {}), Code::kBadRequest);
  EXPECT_EQ(code(tokens, {{0, 4, 0, table}}, {}), Code::kBadRequest);
  EXPECT_EQ(code(tokens, {{0, 3, 0, none}}, {}), Code::kBadRequest);
  EXPECT_EQ(code(tokens, {{0, 3, 30, table}}, {}), Code::kBadRequest);
  EXPECT_EQ(code(tokens, {{0, 3, 0, wrong_block}}, {}), Code::kBadRequest);
  EXPECT_EQ(code(tokens, {{0, 3, 510, table}}, {}), Code::kContextExceeded);
  EXPECT_EQ(code(tokens, {{0, 3, UINT32_MAX, table}}, {}), Code::kContextExceeded);
  EXPECT_EQ(code({}, {}, {}), Code::kBadRequest);
  const std::vector<int32_t> negative{-1}, beyond{320}, many(129, 1);
  EXPECT_EQ(code(negative, {{0, 1, 0, table}}, {}), Code::kBadRequest);
  EXPECT_EQ(code(beyond, {{0, 1, 0, table}}, {}), Code::kBadRequest);
  EXPECT_EQ(code(many, {{0, 129, 0, table}}, {}), Code::kBadRequest);
  KvPool other = rig.kv;
  other.layout.n_layers = 3;
  const SequenceSpan span{0, 3, 0, table};
  EXPECT_FALSE(rig.model->forward({tokens, {&span, 1}, {}, {}}, other));
}

TEST(Model, EightBitsNeedHeadsOfAMultipleOf16) {
  ModelConfig config;
  config.n_layers = 1, config.n_kv_heads = 2, config.head_dim = 24;
  EXPECT_FALSE(KvLayout::for_model(config, KvType::kQ8));
  EXPECT_EQ(usual_kv_type(config), KvType::kF16);
  config.head_dim = 64;
  EXPECT_EQ(usual_kv_type(config), KvType::kQ8);
  const auto layout = *KvLayout::for_model(config, KvType::kQ8), f16 = *KvLayout::for_model(config);
  EXPECT_EQ(layout.token_bytes(), 2u * (2 * 64 + 8));
  EXPECT_EQ(layout.values_at(1) + layout.group_bytes() + 64, layout.head_bytes());
  EXPECT_EQ(f16.values_at(1) + f16.group_bytes(), f16.head_bytes());
  EXPECT_NE(layout.layout_id_input(), f16.layout_id_input());
  EXPECT_FALSE(kv_type_named("q4"));
}

TEST(Model, RefusesUnknownKernelsAndMissingPool) {
  Rig rig(TinyModelOptions{}, {}, 1);
  ModelOptions options;
  EXPECT_FALSE(Model::attach(rig.image.bytes(), options));
  options.pool = &rig.pool;
  options.kernels = "abacus";
  EXPECT_EQ(Model::attach(rig.image.bytes(), options).error().code, Code::kUnsupportedFeature);
}

}  // namespace
}  // namespace tie::bones
