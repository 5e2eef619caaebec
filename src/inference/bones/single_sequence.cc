#include "inference/bones/single_sequence.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>

namespace tie::bones {

struct SingleSequence::State {
  SingleSequenceOptions options;
  std::unique_ptr<ThreadPool> pool;
  OwnedImage image;
  std::unique_ptr<Model> model;
  std::vector<std::byte> kv_memory;
  KvPool kv;
  std::vector<uint32_t> block_table;
  uint32_t n_tokens = 0;

  Result<Logits> forward(std::span<const int32_t> tokens, std::span<const uint32_t> logit_rows) {
    const SequenceSpan span{0, static_cast<uint32_t>(tokens.size()), n_tokens, block_table};
    if (tokens.size() > options.max_tokens - n_tokens)
      return fail(Code::kContextExceeded, "the text is longer than " + std::to_string(options.max_tokens) + " tokens");
    TIE_TRY(Logits logits, model->forward({tokens, {&span, 1}, logit_rows, {}}, kv));
    n_tokens += static_cast<uint32_t>(tokens.size());
    return logits;
  }
};

SingleSequence::SingleSequence(std::unique_ptr<State> state) : state_(std::move(state)) {}
SingleSequence::SingleSequence(SingleSequence&&) noexcept = default;
SingleSequence& SingleSequence::operator=(SingleSequence&&) noexcept = default;
SingleSequence::~SingleSequence() = default;
const ModelConfig& SingleSequence::config() const {
  return state_->model->config();
}
std::string_view SingleSequence::kernels() const {
  return state_->model->kernels();
}
void SingleSequence::restart() {
  state_->n_tokens = 0;
}
uint32_t SingleSequence::n_tokens() const {
  return state_->n_tokens;
}

std::span<const std::byte> SingleSequence::kv_block(uint32_t index) const {
  return {state_->kv.block(state_->block_table[index]), state_->kv.layout.block_bytes()};
}
const KvLayout& SingleSequence::kv_layout() const {
  return state_->kv.layout;
}

Result<SingleSequence> SingleSequence::from_gguf(ByteView gguf, const SingleSequenceOptions& options) {
  auto s = std::make_unique<State>();
  s->options = options;
  s->pool = std::make_unique<ThreadPool>(ThreadPoolOptions{options.n_threads});
  TIE_TRY(s->image, OwnedImage::from_gguf(gguf, s->pool.get()));
  ModelOptions model_options;
  model_options.pool = s->pool.get();
  model_options.kernels = options.kernels;
  model_options.max_batch_rows = options.chunk_rows;
  model_options.max_logit_rows = options.logit_rows;
  TIE_TRY(Model model, Model::attach(s->image.bytes(), model_options));
  s->model = std::make_unique<Model>(std::move(model));
  const ModelConfig& config = s->model->config();
  s->options.max_tokens = std::min(options.max_tokens, config.context_length);
  TIE_TRY(s->kv.layout, KvLayout::for_model(config, options.kv_type.value_or(usual_kv_type(config))));
  s->kv.n_blocks = s->kv.layout.blocks_for(s->options.max_tokens);
  s->kv_memory.resize(s->kv.n_blocks * s->kv.layout.block_bytes() + 64);
  s->kv.base = s->kv_memory.data() + (64 - reinterpret_cast<uintptr_t>(s->kv_memory.data()) % 64) % 64;
  s->block_table.resize(s->kv.n_blocks);
  std::iota(s->block_table.rbegin(), s->block_table.rend(),
            0u);  // backwards, so that nothing works by blocks being neighbours
  return SingleSequence(std::move(s));
}

Result<std::span<float>> SingleSequence::append(std::span<const int32_t> tokens) {
  if (tokens.empty()) return fail(Code::kBadRequest, "no tokens to evaluate");
  State& s = *state_;
  for (;;) {
    const size_t n = std::min<size_t>(tokens.size(), s.options.chunk_rows);
    const uint32_t last = static_cast<uint32_t>(n) - 1;
    const bool final = n == tokens.size();
    TIE_TRY(const Logits logits, s.forward(tokens.first(n), {&last, final ? 1u : 0u}));
    if (final) return logits.row(0);
    tokens = tokens.subspan(n);
  }
}

Result<void> SingleSequence::append_each(std::span<const int32_t> tokens, uint32_t first_visited,
                                         void (*visit)(void*, uint32_t, std::span<float>), void* context) {
  State& s = *state_;
  for (uint32_t at = 0; at < tokens.size();) {
    uint32_t n = std::min<uint32_t>(s.options.chunk_rows, static_cast<uint32_t>(tokens.size()) - at);
    n = std::min(n, at < first_visited ? first_visited - at : s.options.logit_rows);
    const auto chunk = tokens.subspan(at, n);
    std::vector<uint32_t> rows;
    for (uint32_t i = 0; i < chunk.size(); ++i)
      if (at + i >= first_visited) rows.push_back(i);
    TIE_TRY(const Logits logits, s.forward(chunk, rows));
    for (uint32_t i = 0; i < rows.size(); ++i) visit(context, at + rows[i], logits.row(i));
    at += n;
  }
  return {};
}

double log_sum_exp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

double logprob_of(std::span<const float> logits, int32_t id) {
  return logits[static_cast<size_t>(id)] - log_sum_exp(logits);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, uint32_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = static_cast<uint32_t>(std::min<size_t>(count, ids.size()));
  auto better = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), better);
  const double total = logits.empty() ? 0 : log_sum_exp(logits);
  std::vector<TokenLogprob> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back({ids[i], logits[ids[i]] - total});
  return out;
}

}  // namespace tie::bones
