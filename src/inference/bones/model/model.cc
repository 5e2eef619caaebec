#include "inference/bones/model.h"

#include <string>

#include "inference/bones/communicator/communicator.h"
#include "inference/bones/kernels/kernel_choice.h"
#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/model/batch_check.h"
#include "inference/bones/model/forward.h"

namespace tie::bones {
namespace {

PackedMatrix matrix(const WeightsImage& image, Role role, uint32_t layer = 0) {
  const TensorEntry* entry = image.find(role, layer);
  if (!entry) return {};
  return {entry->packing, entry->n, entry->k, image.data(*entry)};
}

const float* vector(const WeightsImage& image, Role role, uint32_t layer = 0) {
  const TensorEntry* entry = image.find(role, layer);
  return entry ? reinterpret_cast<const float*>(image.data(*entry)) : nullptr;
}

LayerWeights layer_weights(const WeightsImage& image, uint32_t i) {
  LayerWeights w;
  w.q = matrix(image, Role::kQ, i);
  w.k = matrix(image, Role::kK, i);
  w.v = matrix(image, Role::kV, i);
  w.o = matrix(image, Role::kAttentionOutput, i);
  w.gate = matrix(image, Role::kGate, i);
  w.up = matrix(image, Role::kUp, i);
  w.down = matrix(image, Role::kDown, i);
  w.experts = {matrix(image, Role::kRouter, i), matrix(image, Role::kExpertGates, i),
               matrix(image, Role::kExpertUps, i), matrix(image, Role::kExpertDowns, i)};
  w.attention_norm = vector(image, Role::kAttentionNorm, i);
  w.ffn_norm = vector(image, Role::kFfnNorm, i);
  w.post_attention_norm = vector(image, Role::kPostAttentionNorm, i);
  w.post_ffn_norm = vector(image, Role::kPostFfnNorm, i);
  w.q_norm = vector(image, Role::kQNorm, i);
  w.k_norm = vector(image, Role::kKNorm, i);
  w.q_bias = vector(image, Role::kQBias, i);
  w.k_bias = vector(image, Role::kKBias, i);
  w.v_bias = vector(image, Role::kVBias, i);
  return w;
}

}  // namespace

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;
const ModelConfig& Model::config() const {
  return state_->image.config();
}
std::string_view Model::kernels() const {
  return state_->kernels->name;
}

Result<Model> Model::attach(std::span<const std::byte> image, const ModelOptions& options) {
  if (!options.pool) return fail(Code::kBadRequest, "a model needs a thread pool");
  if (options.max_batch_rows == 0 || options.max_batch_rows > 8192 || options.max_logit_rows > 8192 ||
      options.max_sequences > 8192)
    return fail(Code::kBadRequest, "batch limits must lie between 1 and 8192");
  auto state = std::make_unique<State>();
  TIE_TRY(state->image, WeightsImage::attach(image));
  state->shard = state->image.shard();
  state->config = shard_config(state->image.config(), state->shard);
  const RankPlace place = state->image.place();
  if (place.alone() != (options.ranks == nullptr) || (options.ranks && options.ranks->place() != place))
    return fail(Code::kBadRequest, "the weights image and the communicator are not of the same rank");
  state->options = options;
  TIE_TRY(state->kernels, choose_kernel_set(options.kernels));
  const ModelConfig& c = state->config;
  state->embedding = matrix(state->image, Role::kEmbedding);
  state->output = c.tied_embeddings ? state->embedding : matrix(state->image, Role::kOutput);
  state->output_norm = vector(state->image, Role::kOutputNorm);
  for (uint32_t i = 0; i < c.n_layers; ++i) state->layers.push_back(layer_weights(state->image, i));
  bool folded = false;
  for (const LayerWeights& w : state->layers)
    for (const PackedMatrix* m : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down, &w.experts.router, &w.experts.gate,
                                  &w.experts.up, &w.experts.down})
      if (m->n != 0) {
        (is_quantised(m->packing) ? state->want_codes : state->want_f32) = true;
        folded = folded || m->packing == Packing::kTileQ4 || m == &w.experts.router;  // experts' inputs are grouped
      }
  const float* factors = vector(state->image, Role::kRopeFactors);
  state->rope[0] = rope_frequencies(c.rope_global, c.rope_dim, factors);
  state->rope[1] = rope_frequencies(c.rope_local, c.rope_dim, nullptr);
  if (!state->ws.allocate(c, options) || !state->experts.allocate(c, options.max_batch_rows))
    return fail(Code::kTooLarge, "no memory for the model's workspace");
  state->ws.set_scale_groups(folded, state->output.packing == Packing::kTileQ4);
  state->experts.set_scale_groups(folded);
  state->logits = options.ranks ? options.ranks->logits() : state->ws.logits;
  state->logits_stride = options.ranks ? options.ranks->logits_stride() : state->ws.logits_stride;
  state->best = options.ranks ? options.ranks->best() : state->ws.best;
  state->parts.reserve(options.max_sequences, options.max_logit_rows, options.max_batch_rows);
  return Model(std::move(state));
}

Result<void> Model::State::check_batch(const Batch& batch, const KvPool& kv) const {
  return bones::check_batch(image.config(), {options.max_batch_rows, options.max_logit_rows, options.max_sequences},
                            batch, kv);
}

Result<void> Model::check(const Batch& batch, const KvPool& kv) const {
  return state_->check_batch(batch, kv);
}

Result<Logits> Model::forward(const Batch& batch, const KvPool& kv) {
  TIE_CHECK_OK(state_->check_batch(batch, kv));
  KvPool own = kv;  // the blocks of the whole model, seen from this rank's first layer and head
  own.base +=
      state_->shard.first_layer * kv.layout.layer_bytes() + state_->shard.first_kv_head * kv.layout.head_bytes();
  if (!state_->run(batch, own)) return fail(Code::kRuntimeLost, "a rank of the model is lost");
  return Logits{state_->logits, state_->logits_stride, static_cast<uint32_t>(batch.logit_rows.size()),
                state_->image.config().n_vocab, state_->options.ranks ? BestRows{} : merge_best(batch)};
}

BestRows Model::merge_best(const Batch& batch) {
  return bones::merge_best(state_->best, batch.best, state_->ws.best_rows, state_->ws.best_counts);
}

}  // namespace tie::bones
