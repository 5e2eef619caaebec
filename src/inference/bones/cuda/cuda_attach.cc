#include <utility>

#include "inference/bones/cuda/cuda_state.h"
#include "inference/bones/kernels/cuda/pack_weights.h"

namespace tie::bones::cuda {
namespace {

constexpr int kMultiprocessorCount = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

}  // namespace

CudaModel::CudaModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaModel::CudaModel(CudaModel&&) noexcept = default;
CudaModel& CudaModel::operator=(CudaModel&&) noexcept = default;
CudaModel::~CudaModel() = default;
const ModelConfig& CudaModel::config() const {
  return state_->whole;
}
const Shard& CudaModel::shard() const {
  return state_->shard;
}
const ModelConfig& CudaModel::part() const {
  return state_->config;
}
const std::string& CudaModel::kernels() const {
  return state_->fast.report();
}
const std::string& CudaModel::kernel_word() const {
  return state_->fast.word();
}
uint32_t CudaModel::captured_graphs() const {
  return static_cast<uint32_t>(
      std::count_if(state_->graphs.begin(), state_->graphs.end(), [](const auto& g) { return g.second.captured(); }));
}
uint64_t CudaModel::graph_launches() const {
  return state_->launches;
}

void CudaModel::State::lay_out(Carver& from) {
  const ModelConfig& c = config;
  const uint64_t rows = options.max_batch_rows, nq = uint64_t{c.n_heads} * c.head_dim,
                 nkv = uint64_t{c.n_kv_heads} * c.head_dim, heads = options.max_logit_rows;
  const uint64_t units = std::max<uint64_t>(2 * options.multiprocessors, options.max_sequences * c.n_kv_heads);
  const uint64_t partials = units * (c.n_heads / c.n_kv_heads);
  b.x = from.take<float>(rows * c.n_embd);
  b.projected = from.take<float>(rows * c.n_embd);
  b.q = from.take<float>(rows * nq);
  b.k = from.take<float>(rows * nkv);
  b.v = from.take<float>(rows * nkv);
  b.attended = from.take<float>(rows * nq);
  const uint64_t inner = rows * std::max(c.n_experts_used, 1u);  // rows of a feed-forward
  b.ffn = from.take<float>(inner * c.n_ff);
  b.up = from.take<float>(inner * c.n_ff);
  b.narrow = from.take<uint16_t>(std::max(rows, heads) * std::max<uint64_t>(c.n_embd, nq));
  b.narrow_ffn = from.take<uint16_t>(inner * c.n_ff);
  b.partial = from.take<float>(partials * c.head_dim);
  b.state = from.take<float>(partials * 2);
  b.head_x = from.take<float>(heads * c.n_embd);
  b.logits = from.take<float>(heads * logits_stride);
  b.values = from.take<float>(heads * options.max_top_k);
  b.ids = from.take<uint32_t>(heads * options.max_top_k);
  b.run_values = from.take<float>(heads * top_k_runs() * options.max_top_k);
  b.run_ids = from.take<uint32_t>(heads * top_k_runs() * options.max_top_k);
  b.masks = from.take<uint32_t>(heads * mask_words);
  b.block_list = from.take<uint32_t>(options.max_table_blocks);
  if (c.n_experts != 0) {
    b.router_logits = from.take<float>(rows * c.n_experts);
    b.expert_weight = from.take<float>(inner);
    b.expert_out = from.take<float>(inner * c.n_embd);
    b.chosen = from.take<uint32_t>(inner);
    b.slot = from.take<uint32_t>(inner);
    b.slot_row = from.take<uint32_t>(inner);
    b.expert_tiles = from.take<ExpertTile>(most_expert_tiles(static_cast<uint32_t>(inner), c.n_experts));
  }
  for (double*& f : b.frequencies) f = from.take<double>(c.rope_dim / 2);
}

Result<void> CudaModel::State::put_frequencies(const DeviceTable& table) {
  std::vector<float> factors;
  if (const DeviceTensor* t = table.find(Role::kRopeFactors)) {
    factors.resize(t->n);
    TIE_CHECK_OK(driver->check(
        driver->copy_out_async(factors.data(), weights.at() + t->offset, t->n * sizeof(float), launcher->stream()),
        "reading the rope factors"));
    TIE_CHECK_OK(launcher->wait());
  }
  for (int set = 0; set < 2; ++set) {
    const RopeFrequencies f = rope_frequencies(set == 0 ? config.rope_global : config.rope_local, config.rope_dim,
                                               set == 0 && !factors.empty() ? factors.data() : nullptr);
    rope_magnitude[set] = f.magnitude;
    TIE_CHECK_OK(write_now(*driver, reinterpret_cast<DevicePtr>(b.frequencies[set]), f.per_pair.data(),
                           f.per_pair.size() * sizeof(double)));
  }
  return {};
}

// For the formats that products of many rows will meet.
Result<void> CudaModel::State::choose_kernels() {
  std::vector<Format> formats;
  auto want = [&](const GpuMatrix& w) {
    if (w.m.n != 0 && std::find(formats.begin(), formats.end(), w.format) == formats.end()) formats.push_back(w.format);
  };
  for (const GpuLayer& l : layers)
    for (const GpuMatrix* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) want(*w);
  want(output);
  TIE_TRY(fast, FastKernels::choose(driver, *launcher, formats, config.head_dim));
  return {};
}

namespace {

GpuMatrix matrix_of(const DeviceTable& table, DevicePtr base, Role role, uint32_t layer = 0) {
  const DeviceTensor* t = table.find(role, layer);
  if (!t) return {};
  return {matrix_at(t->format, t->n, t->k, reinterpret_cast<const uint8_t*>(base + t->offset)), t->format};
}

const float* vector_of(const DeviceTable& table, DevicePtr base, Role role, uint32_t layer = 0) {
  const DeviceTensor* t = table.find(role, layer);
  return t ? reinterpret_cast<const float*>(base + t->offset) : nullptr;
}

GpuLayer layer_of(const DeviceTable& table, DevicePtr base, uint32_t i) {
  GpuLayer w;
  for (auto [matrix, role] : {std::pair{&w.q, Role::kQ},
                              {&w.k, Role::kK},
                              {&w.v, Role::kV},
                              {&w.o, Role::kAttentionOutput},
                              {&w.gate, Role::kGate},
                              {&w.up, Role::kUp},
                              {&w.down, Role::kDown},
                              {&w.router, Role::kRouter},
                              {&w.expert_gates, Role::kExpertGates},
                              {&w.expert_ups, Role::kExpertUps},
                              {&w.expert_downs, Role::kExpertDowns}})
    *matrix = matrix_of(table, base, role, i);
  for (auto [vector, role] : {std::pair{&w.attention_norm, Role::kAttentionNorm},
                              {&w.ffn_norm, Role::kFfnNorm},
                              {&w.post_attention_norm, Role::kPostAttentionNorm},
                              {&w.post_ffn_norm, Role::kPostFfnNorm},
                              {&w.q_norm, Role::kQNorm},
                              {&w.k_norm, Role::kKNorm},
                              {&w.q_bias, Role::kQBias},
                              {&w.k_bias, Role::kKBias},
                              {&w.v_bias, Role::kVBias}})
    *vector = vector_of(table, base, role, i);
  return w;
}

Result<void> check_ranks(const RankPlace& place, const NcclRanks* ranks, const NcclRanks* stages) {
  const bool fits =
      ranks ? ranks->ranks() == place.tensor_ranks && ranks->rank() == place.tensor_rank : place.tensor_ranks == 1;
  const bool stages_fit = stages ? stages->ranks() == place.stages && stages->rank() == place.stage : place.stages == 1;
  if (!fits || !stages_fit)
    return fail(Code::kBadRequest, "the weights of one rank need the communicators of that rank");
  return {};
}

}  // namespace

Result<CudaModel> CudaModel::attach(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels,
                                    const DeviceTable& table, DeviceMemory weights, const CudaModelOptions& options) {
  TIE_CHECK_OK(check_ranks(table.place, options.ranks.get(), options.stages.get()));
  if (options.max_batch_rows == 0 || options.max_batch_rows > 8192 || options.max_logit_rows > 8192 ||
      options.max_sequences > 8192 || options.max_top_k > kMostBest || options.micro_batch_rows == 0)
    return fail(Code::kBadRequest, "batch limits must lie between 1 and 8192");
  if (weights.size() < table.bytes) return fail(Code::kCorrupt, "the GPU weights are shorter than their table says");
  auto s = std::make_unique<State>();
  s->driver = driver;
  s->whole = table.config;
  TIE_TRY(s->shard, shard_of(table.config, table.place));
  s->config = shard_config(table.config, s->shard);
  s->options = options;
  s->weights = std::move(weights);
  if (s->options.multiprocessors == 0) {
    int count = 0;
    TIE_CHECK_OK(driver->check(driver->device_attribute(&count, kMultiprocessorCount, driver->device()),
                               "asking for the GPU's size"));
    s->options.multiprocessors = static_cast<uint32_t>(std::clamp(count, 1, 1024));
  }
  TIE_TRY(s->launcher, Launcher::create(driver, kernels));
  s->logits_stride = (s->config.n_vocab + 15) / 16 * 16;
  s->mask_words = (s->config.n_vocab + 31) / 32;
  Carver count(0);
  s->lay_out(count);
  TIE_TRY(s->work, DeviceMemory::allocate(driver, count.used()));
  Carver carve(s->work.at());
  s->lay_out(carve);
  Carver batch_count(0);
  BatchArea::carve(batch_count, s->options);
  TIE_TRY(s->batch_memory, DeviceMemory::allocate(driver, batch_count.used()));
  TIE_TRY(s->host_batch, PinnedMemory::allocate(driver, batch_count.used()));
  Carver on_device(s->batch_memory.at()), on_host(reinterpret_cast<DevicePtr>(s->host_batch.data()));
  s->device = BatchArea::carve(on_device, s->options);
  s->host = BatchArea::carve(on_host, s->options);
  const uint64_t best_bytes = uint64_t{options.max_logit_rows} * options.max_top_k * 8;
  TIE_TRY(s->host_out, PinnedMemory::allocate(driver, s->logits_bytes() + best_bytes));
  TIE_TRY(s->host_masks, PinnedMemory::allocate(driver, uint64_t{options.max_logit_rows} * s->mask_words * 4));
  s->best.resize(size_t{options.max_logit_rows} * kMostBest);
  s->best_counts.resize(options.max_logit_rows);
  const DevicePtr base = s->weights.at();
  s->embedding = matrix_of(table, base, Role::kEmbedding);
  s->output = s->config.tied_embeddings ? s->embedding : matrix_of(table, base, Role::kOutput);
  s->output_norm = vector_of(table, base, Role::kOutputNorm);
  for (uint32_t i = 0; i < s->config.n_layers; ++i) s->layers.push_back(layer_of(table, base, i));
  TIE_CHECK_OK(s->put_frequencies(table));
  if (options.fast_kernels) TIE_CHECK_OK(s->choose_kernels());
  return CudaModel(std::move(s));
}

}  // namespace tie::bones::cuda
