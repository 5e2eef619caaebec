// Packing a file and attaching an image: what is refused, and that nothing hostile gets past the checks.
#include "inference/bones/weights_image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/kernels/tile.h"
#include "inference/bones/model.h"
#include "inference/bones/model/quant_blocks.h"
#include "inference/bones/testing/gguf_writer.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones {
namespace {

using model_files::TensorType;
using testing::tiny_model;
using testing::TinyModelOptions;

struct Aligned {
  std::vector<std::byte> raw;
  size_t size;
  explicit Aligned(std::span<const std::byte> bytes) : raw(bytes.size() + 64), size(bytes.size()) {
    std::memcpy(data(), bytes.data(), size);
  }
  std::byte* data() { return raw.data() + (64 - reinterpret_cast<uintptr_t>(raw.data()) % 64) % 64; }
  std::span<std::byte> span() { return {data(), size}; }
  ImageHeader& header() { return *reinterpret_cast<ImageHeader*>(data()); }
  TensorEntry& entry(size_t i) { return reinterpret_cast<TensorEntry*>(data() + sizeof(ImageHeader))[i]; }
};

Aligned packed(const TinyModelOptions& options = {}) {
  auto image = OwnedImage::from_gguf(tiny_model(options));
  EXPECT_TRUE(image) << image.error().message;
  return Aligned(image->bytes());
}

TEST(WeightsImage, AttachesAndDescribesTheModel) {
  Aligned image = packed();
  auto attached = WeightsImage::attach(image.span());
  ASSERT_TRUE(attached) << attached.error().message;
  EXPECT_EQ(attached->config().name(), "llama");
  EXPECT_EQ(attached->config().n_vocab, 320u);
  EXPECT_EQ(attached->config().tied_embeddings, 1u);
  ASSERT_NE(attached->find(Role::kDown, 1), nullptr);
  EXPECT_EQ(attached->find(Role::kDown, 1)->k, 96u);
  EXPECT_EQ(attached->find(Role::kDown, 2), nullptr);
}

TEST(WeightsImage, EveryWeightSurvivesPacking) {
  for (TensorType type : {TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ8_0,
                          TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kF16, TensorType::kBF16,
                          TensorType::kF32}) {
    TinyModelOptions o;
    o.n_embd = o.n_ff = 256, o.head_dim = 64, o.architecture = "qwen2", o.weights = type;
    const Bytes file = tiny_model(o);
    const auto gguf = model_files::Gguf::parse(file);
    ASSERT_TRUE(gguf);
    const auto* tensor = gguf->find_tensor("blk.1.ffn_up.weight");
    const ByteView data = gguf->tensor_data(*tensor);
    const auto* info = model_files::tensor_type_info(type);
    Aligned image = packed(o);
    auto attached = WeightsImage::attach(image.span());
    ASSERT_TRUE(attached);
    const TensorEntry* entry = attached->find(Role::kUp, 1);
    std::vector<float> row(256);
    for (uint32_t n : {0u, 17u, 255u}) {
      gather_row({entry->packing, entry->n, entry->k, attached->data(*entry)}, n, row.data());
      const uint8_t* source = data.data() + n * (256 / info->block_elements * info->block_bytes);
      for (uint32_t i = 0; i < 256; ++i) {
        double expected = 0, slack = 0;
        if (info->block_elements == 1) {
          expected = read_float(type, source, i);
        } else {
          const QuantBlock block = read_block(type, source, i / 32);
          const int offset = type == TensorType::kQ6_K ? 32 : type == TensorType::kQ8_0 ? 128 : 0;
          expected = static_cast<double>(block.scale[i % 32 / 16]) * (block.code[i % 32] - offset) + block.minimum;
          // Scales and minima of the K kinds are products, rounded to half here: 2^-11 of each term. Four-bit kinds get
          // integers in units of the column's largest scale / 8191: half a unit off, times up to 8, and as much again.
          slack = std::abs(block.scale[i % 32 / 16] * (block.code[i % 32] - offset)) / 2048.0 +
                  std::abs(block.minimum) / 2048.0 + 1e-6;
          if (entry->packing == Packing::kTileQ4)
            slack = 8.01 * folded_unit(attached->data(*entry) + n / 16 * strip_bytes(entry->packing, 256), 256, n % 16);
        }
        ASSERT_NEAR(row[i], expected, slack) << static_cast<int>(type) << " " << n << " " << i;
      }
    }
  }
}

TEST(WeightsImage, RefusesTruncationAtEveryLength) {
  Aligned image = packed();
  for (size_t n = 0; n < image.size; n += n < 4096 ? 8 : 4096)
    EXPECT_FALSE(WeightsImage::attach(image.span().first(n))) << n;
}

TEST(WeightsImage, RefusesEachKindOfDamage) {
  using Damage = void (*)(Aligned&);
  const std::pair<const char*, Damage> kinds[] = {
      {"magic", [](Aligned& i) { i.header().magic[0] ^= 1; }},
      {"version", [](Aligned& i) { i.header().version = kImageVersion + 1; }},
      {"rank outside its grid", [](Aligned& i) { i.header().place.tensor_rank = 1; }},
      {"another grid", [](Aligned& i) { i.header().place.tensor_ranks = 2; }},
      {"stages", [](Aligned& i) { i.header().place = {0, 1, 1, 2}; }},
      {"tensor count", [](Aligned& i) { i.header().n_tensors = 0x7fffffff; }},
      {"no tensors", [](Aligned& i) { i.header().n_tensors = 0; }},
      {"fewer tensors", [](Aligned& i) { --i.header().n_tensors; }},
      {"layers", [](Aligned& i) { i.header().config.n_layers = 3; }},
      {"huge layers", [](Aligned& i) { i.header().config.n_layers = 0xffffffff; }},
      {"heads", [](Aligned& i) { i.header().config.n_heads = 0; }},
      {"kv heads", [](Aligned& i) { i.header().config.n_kv_heads = 0; }},
      {"head dim", [](Aligned& i) { i.header().config.head_dim = 17; }},
      {"rope dim", [](Aligned& i) { i.header().config.rope_dim = 64; }},
      {"vocabulary", [](Aligned& i) { i.header().config.n_vocab = 321; }},
      {"name without end", [](Aligned& i) { std::memset(i.header().config.architecture, 'x', 16); }},
      {"epsilon", [](Aligned& i) { i.header().config.norm_epsilon = -1.0f; }},
      {"rope base", [](Aligned& i) { i.header().config.rope_global.base = 0.0f; }},
      {"offset", [](Aligned& i) { i.entry(2).offset = ~uint64_t{63}; }},
      {"offset beyond", [](Aligned& i) { i.entry(2).offset = i.size; }},
      {"offset in header", [](Aligned& i) { i.entry(2).offset = 0; }},
      {"unaligned", [](Aligned& i) { i.entry(2).offset += 4; }},
      {"bytes", [](Aligned& i) { i.entry(2).bytes -= 64; }},
      {"packing", [](Aligned& i) { i.entry(3).packing = static_cast<Packing>(99); }},
      {"packing kind", [](Aligned& i) { i.entry(3).packing = Packing::kTileQ8; }},
      {"role", [](Aligned& i) { i.entry(3).role = static_cast<Role>(77); }},
      {"twice", [](Aligned& i) { i.entry(3) = i.entry(4); }},
      {"shape", [](Aligned& i) { i.entry(3).n += 16; }},
      {"layer", [](Aligned& i) { i.entry(3).layer = 9; }},
  };
  for (const auto& [name, damage] : kinds) {
    Aligned image = packed();
    damage(image);
    auto attached = WeightsImage::attach(image.span());
    ASSERT_FALSE(attached) << name;
    EXPECT_FALSE(attached.error().message.empty());
  }
}

TEST(WeightsImage, RandomDamageNeverGetsPastTheChecksUnsafely) {
  std::mt19937 random(1);
  const Aligned clean = packed();
  ThreadPool pool({1});
  for (int trial = 0; trial < 3000; ++trial) {
    Aligned image = clean;
    std::memcpy(image.data(), const_cast<Aligned&>(clean).data(), clean.size);
    const size_t table = sizeof(ImageHeader) + image.header().n_tensors * sizeof(TensorEntry);
    for (uint32_t i = 0; i < 1 + random() % 3; ++i) image.data()[random() % table] = static_cast<std::byte>(random());
    ModelOptions options;
    options.pool = &pool, options.max_batch_rows = 8, options.max_logit_rows = 1;
    if (!WeightsImage::attach(image.span())) continue;
    auto model = Model::attach(image.span(), options);
    if (!model) continue;
    const auto layout = *KvLayout::for_model(model->config());
    std::vector<std::byte> memory(layout.block_bytes() + 64);
    const KvPool kv{memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64, 1, layout};
    const std::vector<int32_t> tokens{1, 2, 3};
    const std::vector<uint32_t> block_table{0}, rows{2};
    const SequenceSpan span{0, 3, 0, block_table};
    (void)model->forward({tokens, {&span, 1}, rows, {}}, kv);  // must not crash (run with a sanitizer)
  }
}

TEST(PackPlan, NamesWhatIsWrongWithAFile) {
  auto message = [](const Bytes& file) {
    auto plan = PackPlan::from_gguf(file);
    return plan ? std::string("accepted") : plan.error().message;
  };
  TinyModelOptions o;
  EXPECT_EQ(message(tiny_model(o)), "accepted");
  o.architecture = "alien";
  EXPECT_NE(message(tiny_model(o)).find("alien"), std::string::npos);
  o = {};
  o.n_heads = 3;
  EXPECT_NE(message(tiny_model(o)), "accepted");
  o = {};
  o.n_embd = 72;
  o.weights = o.embedding = TensorType::kF32;
  EXPECT_NE(message(tiny_model(o)).find("multiple of 32"), std::string::npos);
  Bytes cut = tiny_model({});
  cut.resize(cut.size() - 5000);
  EXPECT_NE(message(cut), "accepted");
}

TEST(PackPlan, RefusesWrongMemory) {
  const Bytes file = tiny_model({});
  auto plan = PackPlan::from_gguf(file);
  ASSERT_TRUE(plan);
  std::vector<std::byte> memory(plan->image_bytes() + 128);
  std::byte* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  EXPECT_TRUE(plan->write({aligned, plan->image_bytes()}));
  EXPECT_FALSE(plan->write({aligned, plan->image_bytes() - 64}));
  EXPECT_FALSE(plan->write({aligned + 8, plan->image_bytes()}));
}

}  // namespace
}  // namespace tie::bones
