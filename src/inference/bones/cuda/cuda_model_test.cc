// Whole tiny models through the GPU back end on the emulated driver, against the CPU's forward pass.
#include "inference/bones/cuda/cuda_model.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "inference/bones/cuda/device_kv.h"
#include "inference/bones/cuda/testing/fake_driver.h"
#include "inference/bones/ops/best_ids.h"
#include "inference/bones/single_sequence.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones::cuda {
namespace {

using model_files::TensorType;
using testing::TinyModelOptions;

void* in_fake_driver(const char* symbol) {
  static void* library = ::dlopen(TIE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  return ::dlsym(library, symbol);
}

const FakeCudaCounters& counters() {
  return *reinterpret_cast<const FakeCudaCounters* (*)()>(in_fake_driver("tie_fake_cuda_counters"))();
}

// While it lives the driver has a GPU of another generation, on which one kernel may be broken.
struct Generation {
  explicit Generation(int major, const char* broken = "") { become(major, broken); }
  ~Generation() { become(3, ""); }
  static void become(int major, const char* broken) {
    reinterpret_cast<void (*)(int, const char*)>(in_fake_driver("tie_fake_cuda_become"))(major, broken);
  }
};

std::shared_ptr<Driver> driver() {
  static const auto one = Driver::load(0, TIE_FAKE_CUDA).value();
  return one;
}

TinyModelOptions tiny(const std::string& family, TensorType weights) {
  TinyModelOptions o;
  o.architecture = family;
  o.weights = weights;
  o.embedding = weights == TensorType::kF32 ? TensorType::kF32 : TensorType::kQ8_0;
  o.sliding_window = 5;
  return o;
}

std::vector<int32_t> random_tokens(uint32_t n) {
  std::mt19937 random(31);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(random() % 300);
  return out;
}

// A model on the emulated GPU with room for a few sequences.
struct GpuModel {
  DeviceTable table;
  DeviceMemory kv_memory;
  DeviceKvPool kv;
  std::unique_ptr<CudaModel> model;

  static Result<GpuModel> load(const Bytes& file, bool graphs = true, KvType type = KvType::kF16) {
    TIE_TRY(LoadedWeights weights, load_weights(driver(), file));
    return attach(std::move(weights.table), std::move(weights.memory), graphs, type);
  }
  static Result<GpuModel> attach(DeviceTable table, DeviceMemory weights, bool graphs = true,
                                 KvType type = KvType::kF16) {
    GpuModel out;
    const CudaModelOptions options{.max_batch_rows = 64,
                                   .max_logit_rows = 64,
                                   .max_sequences = 8,
                                   .max_table_blocks = 64,
                                   .graphs = graphs,
                                   .fast_rows = 8};
    TIE_TRY(CudaModel model, CudaModel::attach(driver(), {}, table, std::move(weights), options));
    out.model = std::make_unique<CudaModel>(std::move(model));
    out.table = std::move(table);
    TIE_TRY(out.kv.layout, KvLayout::for_model(out.table.config, type));
    out.kv.n_blocks = 16;
    TIE_TRY(out.kv_memory, DeviceMemory::allocate(driver(), out.kv.n_blocks * out.kv.layout.block_bytes()));
    out.kv.base = out.kv_memory.at();
    return out;
  }

  // Logits of every position, in chunks.
  Result<std::vector<float>> evaluate(const std::vector<int32_t>& tokens, uint32_t chunk) {
    const std::vector<uint32_t> table{5, 2, 9, 0};
    std::vector<float> out;
    for (uint32_t at = 0; at < tokens.size(); at += chunk) {
      const auto n = std::min(chunk, static_cast<uint32_t>(tokens.size()) - at);
      const SequenceSpan span{0, n, at, table};
      std::vector<uint32_t> rows(n);
      std::iota(rows.begin(), rows.end(), 0);
      TIE_TRY(const Logits logits, model->forward({std::span(tokens).subspan(at, n), {&span, 1}, rows, {}}, kv));
      for (uint32_t i = 0; i < n; ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
    }
    return out;
  }
};

std::vector<float> on_the_cpu(const Bytes& file, const std::vector<int32_t>& tokens) {
  auto model = SingleSequence::from_gguf(file, {.n_threads = 1, .max_tokens = 128}).value();
  std::vector<float> out;
  auto visit = [](void* context, uint32_t, std::span<float> logits) {
    auto& all = *static_cast<std::vector<float>*>(context);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  EXPECT_TRUE(model.append_each(tokens, 0, visit, &out));
  return out;
}

struct Difference {
  double worst = 0, mean = 0, spread = 0;
};
Difference difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  Difference d;
  for (size_t i = 0; i < a.size(); ++i) {
    d.worst = std::max(d.worst, static_cast<double>(std::fabs(a[i] - b[i])));
    d.mean += std::fabs(a[i] - b[i]) / static_cast<double>(a.size());
    d.spread += double{a[i]} * a[i] / static_cast<double>(a.size());
  }
  d.spread = std::sqrt(d.spread);
  return d;
}

class Families : public ::testing::TestWithParam<std::string> {};

// With float weights the paths of up to four rows compute in float like the CPU; only the order of sums and the f16
// cache differ (2^-11 of a key or value, now and then). Paths of many rows round every activation to bf16, 2^-8.
TEST_P(Families, GiveTheLogitsOfTheCpu) {
  const Bytes file = testing::tiny_model(tiny(GetParam(), TensorType::kF32));
  const auto tokens = random_tokens(9);
  const auto expected = on_the_cpu(file, tokens);
  auto gpu = GpuModel::load(file);
  ASSERT_TRUE(gpu) << gpu.error().message;
  for (auto [chunk, worst, mean] : {std::tuple{1u, 0.01, 0.001}, {3u, 0.01, 0.001}, {9u, 0.15, 0.02}}) {
    const auto logits = gpu->evaluate(tokens, chunk);
    ASSERT_TRUE(logits) << logits.error().message;
    const Difference d = difference(expected, *logits);
    std::printf("%s, chunks of %u: spread %.3f, worst %.2e, mean %.2e\n", GetParam().c_str(), chunk, d.spread, d.worst,
                d.mean);
    if (chunk != 3) {  // a chunk of three is prefill: attention by bf16 products
      EXPECT_LT(d.worst, worst * d.spread);
      EXPECT_LT(d.mean, mean * d.spread);
    } else {
      EXPECT_LT(d.mean, 0.02 * d.spread);
    }
  }
}

// The CPU quantises activations to 8 bits where the GPU has floats: agreement to that.
TEST_P(Families, RunOnQuantisedWeights) {
  const Bytes file = testing::tiny_model(tiny(GetParam(), TensorType::kQ4_1));
  const auto tokens = random_tokens(6);
  auto gpu = GpuModel::load(file);
  ASSERT_TRUE(gpu) << gpu.error().message;
  const auto logits = gpu->evaluate(tokens, 1);
  ASSERT_TRUE(logits) << logits.error().message;
  const Difference d = difference(on_the_cpu(file, tokens), *logits);
  std::printf("%s q4: spread %.3f, worst %.2e, mean %.2e\n", GetParam().c_str(), d.spread, d.worst, d.mean);
  EXPECT_LT(d.mean, 0.06 * d.spread);
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         ::testing::Values("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3"));

// A model whose heads Hopper's attention takes, in a format that is dequantised and one that is not.
TEST(CudaModel, AGpuWithItsOwnUnitsGivesWhatThePortableKernelsGive) {
  for (TensorType type : {TensorType::kBF16, TensorType::kQ4_0}) {
    TinyModelOptions o = tiny("llama", type);
    o.n_layers = 1;
    o.n_heads = 2, o.n_kv_heads = 1, o.head_dim = 64;
    const Bytes file = testing::tiny_model(o);
    const auto tokens = random_tokens(37);
    const auto portable = GpuModel::load(file)->evaluate(tokens, 37).value();
    for (int generation : {9, 10}) {
      const Generation now(generation);
      auto gpu = GpuModel::load(file);
      ASSERT_TRUE(gpu) << gpu.error().message;
      EXPECT_EQ(gpu->model->kernels().find("PORTABLE"), std::string::npos) << gpu->model->kernels();
      const std::string kernel = generation == 9 ? "attention: its own units" : "its own units";
      EXPECT_NE(gpu->model->kernels().find(kernel), std::string::npos) << gpu->model->kernels();
      // Layers, the output in another format, and on Hopper attention.
      EXPECT_EQ(gpu->model->kernel_word(), generation == 10 ? "cuda-blackwell-2-of-2" : "cuda-hopper-3-of-3");
      const auto logits = gpu->evaluate(tokens, 37);
      ASSERT_TRUE(logits) << logits.error().message;
      EXPECT_TRUE(generation != 9 || *logits != portable) << "keys and values are not rounded to bf16 there";
      const Difference d = difference(portable, *logits);
      EXPECT_LT(d.worst, 0.05 * d.spread);
      EXPECT_LT(d.mean, 0.01 * d.spread);
    }
  }
}

TEST(CudaModel, AKernelThatDisagreesWithItsTwinNeverServes) {
  TinyModelOptions o = tiny("llama", TensorType::kBF16);
  o.n_layers = 1;
  o.n_heads = 2, o.n_kv_heads = 1, o.head_dim = 64;
  const Bytes file = testing::tiny_model(o);
  const auto tokens = random_tokens(20);
  const auto portable = GpuModel::load(file)->evaluate(tokens, 20).value();
  for (const char* broken : {"tie_gemm_sm90_bf16", "tie_attention_sm90_64"}) {
    const Generation now(9, broken);
    auto gpu = GpuModel::load(file);
    ASSERT_TRUE(gpu) << gpu.error().message;
    EXPECT_NE(gpu->model->kernels().find("PORTABLE"), std::string::npos) << gpu->model->kernels();
    EXPECT_EQ(gpu->model->kernel_word(), "cuda-hopper-2-of-3");
    const Difference d = difference(portable, gpu->evaluate(tokens, 20).value());
    EXPECT_LT(d.worst, 0.05 * d.spread);
  }
}

// e4m3 keeps three bits of fraction: a key or value is off by up to a sixteenth of itself.
TEST(CudaModel, AnEightBitCacheGivesNearlyTheSameInHalfTheMemory) {
  const Bytes file = testing::tiny_model(tiny("qwen3", TensorType::kF32));
  const auto tokens = random_tokens(20);
  auto full = GpuModel::load(file, true), small = GpuModel::load(file, true, KvType::kQ8);
  ASSERT_TRUE(full && small);
  EXPECT_LT(small->kv.layout.block_bytes(), full->kv.layout.block_bytes() * 3 / 4);
  for (uint32_t chunk : {1u, 10u}) {
    const auto expected = full->evaluate(tokens, chunk), found = small->evaluate(tokens, chunk);
    ASSERT_TRUE(expected && found);
    const Difference d = difference(*expected, *found);
    std::printf("8-bit cache, chunks of %u: spread %.3f, worst %.2e, mean %.2e\n", chunk, d.spread, d.worst, d.mean);
    EXPECT_LT(d.mean, 0.05 * d.spread);
    EXPECT_GT(d.mean, 0);
  }
  // Its blocks leave and return like any others.
  auto records = PinnedMemory::allocate(driver(), small->kv.layout.block_bytes());
  ASSERT_TRUE(records);
  const std::vector<uint32_t> from{5}, to{11};
  ASSERT_TRUE(small->model->copy_blocks(small->kv, from, *records, false));
  ASSERT_TRUE(small->model->copy_blocks(small->kv, to, *records, true));
  const uint32_t row = 0;
  std::vector<float> logits[2];
  for (int i = 0; i < 2; ++i) {
    const SequenceSpan span{0, 1, 19, i == 0 ? from : to};
    const auto again = small->model->forward({std::span(tokens).last(1), {&span, 1}, {&row, 1}, {}}, small->kv);
    ASSERT_TRUE(again);
    logits[i].assign(again->row(0).begin(), again->row(0).end());
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(CudaModel, CapturesADecodeStepWhenItsShapeReturnsAndReplaysIt) {
  for (const char* family : {"qwen3", "qwen3moe"}) {  // other experts at each step
    const Bytes file = testing::tiny_model(tiny(family, TensorType::kQ4_0));
    const auto tokens = random_tokens(8);
    auto captured = GpuModel::load(file, true), plain = GpuModel::load(file, false);
    ASSERT_TRUE(captured && plain);
    EXPECT_EQ(captured->evaluate(tokens, 1).value(), plain->evaluate(tokens, 1).value());
    EXPECT_EQ(captured->model->captured_graphs(), 1u);
    EXPECT_EQ(captured->model->graph_launches(), 7u);
    EXPECT_EQ(plain->model->captured_graphs(), 0u);
  }
}

TEST(CudaModel, SequencesOfABatchDoNotDisturbEachOther) {
  const Bytes file = testing::tiny_model(tiny("llama", TensorType::kF32));
  auto gpu = GpuModel::load(file);
  ASSERT_TRUE(gpu);
  const auto tokens = random_tokens(10);
  const auto alone = gpu->evaluate(tokens, 10);
  ASSERT_TRUE(alone);
  // The same prompt as the second of two sequences; logits of its last row alone.
  std::vector<int32_t> both = random_tokens(5);
  both.insert(both.end(), tokens.begin(), tokens.end());
  const std::vector<uint32_t> first{1}, second{7};
  const SequenceSpan spans[] = {{0, 5, 0, first}, {5, 10, 0, second}};
  const uint32_t last = 14;
  const auto logits = gpu->model->forward({both, spans, {&last, 1}, {}}, gpu->kv);
  ASSERT_TRUE(logits) << logits.error().message;
  const std::vector<float> row(logits->row(0).begin(), logits->row(0).end());
  const std::vector<float> expected(alone->end() - 320, alone->end());
  EXPECT_LT(difference(expected, row).worst, 0.05 * difference(expected, row).spread);
}

TEST(CudaModel, TheBestIdsComeBackUnderAMask) {
  auto gpu = GpuModel::load(testing::tiny_model(tiny("gemma2", TensorType::kF32)));
  ASSERT_TRUE(gpu);
  const auto tokens = random_tokens(6);
  const std::vector<uint32_t> table{3};
  const SequenceSpan span{0, 6, 0, table};
  const uint32_t last = 5;
  const Batch batch{tokens, {&span, 1}, {&last, 1}, {}};
  const auto logits = gpu->model->forward(batch, gpu->kv);
  ASSERT_TRUE(logits);
  TopScratch scratch;
  const auto four = select_top(logits->row(0), 4, scratch);
  const std::vector<Candidate> expected(four.begin(), four.end());
  ASSERT_EQ(expected.size(), 4u);
  BestOf want{.k = 3};
  Batch few = batch;
  few.best = {&want, 1};
  auto best = gpu->model->forward(few, gpu->kv);
  ASSERT_TRUE(best) << best.error().message;
  ASSERT_EQ(best->best.row(0).size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(best->best.row(0)[i].token, expected[i].token);
  std::vector<uint32_t> mask(10, 0xffffffffu);
  mask[expected[0].token / 32] &= ~(1u << expected[0].token % 32);
  want.mask = mask.data();
  best = gpu->model->forward(few, gpu->kv);
  ASSERT_TRUE(best);
  ASSERT_EQ(best->best.row(0).size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(best->best.row(0)[i].token, expected[i + 1].token);
}

// Rows that are wanted whole beside rows of which the best ids are enough; twice, so that the second is a graph's.
TEST(CudaModel, ABatchMayWantSomeRowsWholeAndTheBestOfOthers) {
  auto gpu = GpuModel::load(testing::tiny_model(tiny("gemma2", TensorType::kF32)));
  ASSERT_TRUE(gpu);
  const std::vector<int32_t> tokens = random_tokens(4);
  const std::vector<uint32_t> tables[] = {{3}, {5}, {1}, {7}}, rows{0, 1, 2, 3};
  const SequenceSpan spans[] = {{0, 1, 0, tables[0]}, {1, 1, 0, tables[1]}, {2, 1, 0, tables[2]}, {3, 1, 0, tables[3]}};
  const auto whole = gpu->model->forward({tokens, spans, rows, {}}, gpu->kv);
  ASSERT_TRUE(whole) << whole.error().message;
  std::vector<std::vector<float>> values;
  for (uint32_t i = 0; i < 4; ++i) values.emplace_back(whole->row(i).begin(), whole->row(i).end());
  std::vector<uint32_t> mask(10, 0x5a5a5a5au);
  const BestOf wants[] = {{.k = 1, .below = 200}, {}, {.k = 7, .below = 290, .mask = mask.data()}, {}};
  for (int round = 0; round < 3; ++round) {
    const auto found = gpu->model->forward({tokens, spans, rows, {}, wants}, gpu->kv);
    ASSERT_TRUE(found) << found.error().message;
    for (uint32_t i : {1u, 3u}) EXPECT_TRUE(std::equal(values[i].begin(), values[i].end(), found->row(i).begin())) << i;
    for (uint32_t i : {0u, 2u}) {
      std::vector<float> row = values[i];
      if (wants[i].mask) apply_mask(row, mask);
      TopScratch scratch;
      const auto expected = select_top(std::span(row).first(wants[i].below), wants[i].k, scratch);
      const auto best = found->best.row(i);
      ASSERT_EQ(best.size(), expected.size());
      for (size_t j = 0; j < best.size(); ++j) {
        EXPECT_EQ(best[j].token, expected[j].token);
        EXPECT_EQ(best[j].logit, expected[j].logit);
      }
    }
  }
  EXPECT_GE(gpu->model->graph_launches(), 2u);
}

TEST(CudaModel, BlocksOfAConversationLeaveAndReturn) {
  auto gpu = GpuModel::load(testing::tiny_model(tiny("llama", TensorType::kF32)));
  ASSERT_TRUE(gpu);
  const auto tokens = random_tokens(36);
  const auto before = gpu->evaluate(tokens, 36);
  ASSERT_TRUE(before);
  auto records = PinnedMemory::allocate(driver(), 2 * gpu->kv.layout.block_bytes());
  ASSERT_TRUE(records);
  const std::vector<uint32_t> used{5, 2}, elsewhere{11, 12};
  ASSERT_TRUE(gpu->model->copy_blocks(gpu->kv, used, *records, false));
  ASSERT_TRUE(gpu->model->copy_blocks(gpu->kv, elsewhere, *records, true));
  const SequenceSpan span{0, 1, 35, elsewhere};  // the last token again, on the copies
  const uint32_t row = 0;
  const auto again = gpu->model->forward({std::span(tokens).last(1), {&span, 1}, {&row, 1}, {}}, gpu->kv);
  ASSERT_TRUE(again);
  const std::vector<float> expected(before->end() - 320, before->end()),
      found(again->row(0).begin(), again->row(0).end());
  EXPECT_LT(difference(expected, found).worst, 0.1 * difference(expected, found).spread);
  const std::vector<uint32_t> wrong{99};
  EXPECT_EQ(gpu->model->copy_blocks(gpu->kv, wrong, *records, true).error().code, Code::kBadRequest);
}

TEST(DeviceKv, MovesZeroesAndCopiesWholeBlocksAndRefusesOthers) {
  KvLayout layout{.block_tokens = 16, .n_layers = 1, .n_kv_heads = 1, .head_dim = 16};
  auto kv = DeviceKv::create(driver(), layout, 3);
  ASSERT_TRUE(kv) << kv.error().message;
  auto stage = kv->staging();
  ASSERT_EQ(stage.size(), layout.block_bytes());
  std::fill(stage.begin(), stage.end(), std::byte{7});
  ASSERT_TRUE(kv->put(1));
  ASSERT_TRUE(kv->copy(2, 1));
  ASSERT_TRUE(kv->zero(1));
  ASSERT_TRUE(kv->get(1));
  EXPECT_EQ(stage[5], std::byte{0});
  ASSERT_TRUE(kv->get(2));
  EXPECT_EQ(stage[5], std::byte{7});
  ASSERT_TRUE(kv->get(0));
  EXPECT_EQ(stage[5], std::byte{0});
  for (auto refused : {kv->put(3), kv->get(3), kv->zero(3), kv->copy(3, 0), kv->copy(0, 3)})
    EXPECT_EQ(refused.error().code, Code::kBadRequest);
  EXPECT_FALSE(DeviceKv::create(driver(), layout, 0));
}

// The owner's life: weights go to the GPU once; runtimes come and go and copy none of them.
TEST(CudaModel, ARecycledRuntimeAttachesToTheOwnersMemoryWithoutCopying) {
  const Bytes file = testing::tiny_model(tiny("llama", TensorType::kQ8_0));
  const uint64_t before = counters().copied_in_bytes;
  auto owner = load_weights(driver(), file);
  ASSERT_TRUE(owner);
  EXPECT_EQ(counters().copied_in_bytes - before, owner->table.bytes);
  const IpcHandle handle = owner->memory.share().value();
  const Bytes table = owner->table.serialize();
  const auto tokens = random_tokens(4);
  const auto expected = GpuModel::load(file)->evaluate(tokens, 4).value();
  for (int recycle = 0; recycle < 2; ++recycle) {
    const pid_t runtime = ::fork();
    if (runtime == 0) {
      const uint64_t copied = counters().copied_in_bytes, attached = counters().attaches;
      auto parsed = DeviceTable::parse(table);
      auto memory = DeviceMemory::attach(driver(), handle, owner->table.bytes);
      if (!parsed || !memory) ::_exit(1);
      auto model = GpuModel::attach(std::move(*parsed), std::move(*memory));
      if (!model || model->evaluate(tokens, 4).value() != expected) ::_exit(2);
      const bool small = counters().copied_in_bytes - copied < owner->table.bytes / 4;
      ::_exit(small && counters().attaches == attached + 1 ? 0 : 3);
    }
    int status = 0;
    ::waitpid(runtime, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  EXPECT_FALSE(DeviceMemory::attach(driver(), IpcHandle{}, 16));
}

TEST(CudaModel, RefusesADamagedTableAndWhatItCannotRun) {
  auto owner = load_weights(driver(), testing::tiny_model(tiny("llama", TensorType::kQ8_0)));
  ASSERT_TRUE(owner);
  const Bytes good = owner->table.serialize();
  ASSERT_TRUE(DeviceTable::parse(good));
  std::mt19937 random(3);
  for (size_t length = 0; length < good.size(); length += 7)
    EXPECT_FALSE(DeviceTable::parse(ByteView(good).first(length)));
  for (int i = 0; i < 3000; ++i) {  // whatever is parsed stays inside the memory
    Bytes bad = good;
    bad[random() % bad.size()] ^= static_cast<uint8_t>(1u << random() % 8);
    auto parsed = DeviceTable::parse(bad);
    if (!parsed) continue;
    for (const DeviceTensor& t : parsed->tensors) EXPECT_LE(t.offset + t.bytes, parsed->bytes);
  }
  TinyModelOptions odd = tiny("llama", TensorType::kQ8_0);
  odd.head_dim = 48;
  EXPECT_EQ(load_weights(driver(), testing::tiny_model(odd)).error().code, Code::kUnsupportedFeature);
}

TEST(CudaModel, AMachineWithoutADriverGetsAnError) {
  EXPECT_EQ(Driver::load(0, "libnowhere-cuda.so.1").error().code, Code::kNotFound);
  EXPECT_EQ(Driver::load(0, "libc.so.6").error().code, Code::kUnsupportedFeature);
  EXPECT_EQ(Driver::load(9, TIE_FAKE_CUDA).error().code, Code::kIo);
}

}  // namespace
}  // namespace tie::bones::cuda
