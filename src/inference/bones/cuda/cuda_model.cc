#include "inference/bones/cuda/cuda_model.h"

#include <bit>
#include <cstring>
#include <string>

#include "inference/bones/cuda/cuda_state.h"
#include "inference/bones/kernels/cuda/gemm.h"
#include "inference/bones/kernels/cuda/sampling.h"
#include "inference/bones/model/batch_check.h"
#include "inference/bones/model/micro_batch.h"

namespace tie::bones::cuda {
namespace {

constexpr uint32_t kMaxGraphs = 64, kLeastStride = 8;

}  // namespace

// ---- products ----

Result<void> CudaModel::State::gemv(const GpuMatrix& w, const GpuMatrix* up, const float* x, const float* norm,
                                    float* y, uint32_t stride, uint32_t rows, bool add) {
  GemvArgs args{.w = w.m,
                .x = x,
                .norm = norm,
                .y = y,
                .rows = rows,
                .x_stride = w.m.k,
                .y_stride = stride,
                .epsilon = config.norm_epsilon,
                .add = add};
  if (up) args.up = up->m, args.gate = gate();
  return launcher->launch_for(rows == 1 ? "tie_gemv_one" : "tie_gemv", w.format, args,
                              {gemv_blocks(w.m.n, args.gate != Gate::kNone), (rows + kGemvRows - 1) / kGemvRows, 1},
                              kGemvThreads, kGemvSharedBytes);
}

// Queries, keys and values of a single row in one launch.
Result<void> CudaModel::State::gemv_heads(const GpuLayer& w) {
  const GemvThreeArgs args{.first = {.w = w.q.m,
                                     .x = hidden,
                                     .norm = w.attention_norm,
                                     .y = b.q,
                                     .rows = 1,
                                     .x_stride = w.q.m.k,
                                     .epsilon = config.norm_epsilon},
                           .second = w.k.m,
                           .third = w.v.m,
                           .second_y = b.k,
                           .third_y = b.v};
  const uint32_t blocks = gemv_blocks(w.q.m.n, false) + gemv_blocks(w.k.m.n, false) + gemv_blocks(w.v.m.n, false);
  return launcher->launch_for("tie_gemv_three", w.q.format, args, {blocks, 1, 1}, kGemvThreads, kGemvSharedBytes);
}

Result<void> CudaModel::State::gemm(const GpuMatrix& w, const uint16_t* x, float* y, uint32_t stride, uint32_t rows,
                                    bool add) {
  const GemmArgs args{.w = w.m, .x = x, .y = y, .rows = rows, .y_stride = stride, .add = add};
  if (rows >= options.fast_rows && fast.multiplies(w.format)) return fast.multiply(*launcher, w.format, args);
  return launcher->launch_for("tie_gemm", w.format, args,
                              {(w.m.n + kGemmTile - 1) / kGemmTile, (rows + kGemmTile - 1) / kGemmTile, 1},
                              kGemmThreads, kGemmSharedBytes);
}

Result<void> CudaModel::State::narrow(const float* x, const float* norm, uint16_t* out, uint32_t n, uint32_t rows) {
  return launcher->launch("tie_norm_to_bf16", NormArgs{x, norm, out, n, config.norm_epsilon}, {rows, 1, 1}, kRowThreads,
                          kRowSharedBytes);
}

// x += product, or with a post norm x += norm(product).
Result<void> CudaModel::State::project(const GpuMatrix& w, const float* in, const float* post_norm, uint32_t rows) {
  float* out = post_norm ? b.projected : hidden;
  if (rows <= kGemvRows) {
    TIE_CHECK_OK(gemv(w, nullptr, in, nullptr, out, config.n_embd, rows, adds(post_norm)));
  } else {
    TIE_CHECK_OK(narrow(in, nullptr, b.narrow, w.m.k, rows));
    TIE_CHECK_OK(gemm(w, b.narrow, out, config.n_embd, rows, adds(post_norm)));
  }
  return finish_projection(post_norm, rows);
}

Result<void> CudaModel::State::finish_projection(const float* post_norm, uint32_t rows) {
  TIE_CHECK_OK(add_ranks(post_norm ? b.projected : hidden, uint64_t{rows} * config.n_embd));
  if (!post_norm) return {};
  return launcher->launch("tie_add_norm",
                          AddNormArgs{hidden, b.projected, post_norm, config.n_embd, config.norm_epsilon}, {rows, 1, 1},
                          kRowThreads, kRowSharedBytes);
}

// ---- ranks ----

Result<void> CudaModel::State::add_ranks(float* at, uint64_t count) {
  return options.ranks ? options.ranks->all_reduce(at, count, launcher->stream()) : Result<void>();
}

Result<void> CudaModel::State::find_top_k(const StepShape& s) {
  const uint32_t runs = top_k_runs();
  TIE_CHECK_OK(launcher->launch("tie_top_k",
                                TopKArgs{b.logits, device.below, b.run_ids, b.run_values, config.n_vocab, logits_stride,
                                         shard.first_vocab, s.top_k, runs},
                                {runs, s.logit_rows, 1}, kSampleThreads, kSampleSharedBytes));
  return launcher->launch("tie_merge_top_k",
                          MergeTopKArgs{b.run_ids, b.run_values, b.ids, b.values, runs * s.top_k, s.top_k},
                          {s.logit_rows, 1, 1}, kSampleThreads, kSampleSharedBytes);
}

Result<void> CudaModel::State::wait() {
  if (options.stages) TIE_CHECK_OK(options.stages->wait(launcher->stream()));
  return options.ranks ? options.ranks->wait(launcher->stream()) : options.stages ? Result<void>() : launcher->wait();
}

// The rows of the batch, from their tokens or from the stage before.
Result<void> CudaModel::State::begin_rows(const StepShape& s) {
  const uint64_t count = uint64_t{s.rows} * config.n_embd;
  if (!shard.first_stage) return options.stages->receive(hidden, count, options.stages->rank() - 1, launcher->stream());
  const EmbedArgs embed{embedding.m, now.tokens, hidden, config.embedding_scale, shard.first_vocab};
  TIE_CHECK_OK(launcher->launch_for("tie_embed", embedding.format, embed, {s.rows, 1, 1}, kRowThreads, 0));
  return add_ranks(hidden, count);
}

Result<void> CudaModel::State::send_rows(const StepShape& s) {
  return options.stages->send(hidden, uint64_t{s.rows} * config.n_embd, options.stages->rank() + 1, launcher->stream());
}

// ---- layers ----

Result<void> CudaModel::State::attention(uint32_t i, const StepShape& s, const PagedKv& kv, uint32_t pool_blocks) {
  const ModelConfig& c = config;
  const bool local = whole.layer_is_local(shard.first_layer + i);
  const uint32_t window = local ? c.sliding_window : 0;
  if (s.decode) {
    const uint32_t n = splits(s.rows), group = c.n_heads / c.n_kv_heads;
    const RowPlaces places{now.position, now.sequence, now.tables, s.table_stride};
    const DecodeArgs args{b.q, b.partial, b.state, places, kv, c.n_heads, n, window, c.attention_soft_cap};
    TIE_CHECK_OK(launcher->launch("tie_decode_attention", args, {n, c.n_kv_heads, s.rows}, kDecodeThreads,
                                  decode_shared_bytes(group, c.head_dim)));
    return launcher->launch("tie_merge_attention", MergeArgs{b.partial, b.state, b.attended, c.n_heads, c.head_dim, n},
                            {c.n_heads, s.rows, 1}, kRowThreads, 0);
  }
  const PrefillArgs args{b.q, b.attended, now.spans, now.tables,          s.table_stride,
                         kv,  c.n_heads,  window,    c.attention_soft_cap};
  if (s.rows >= options.fast_rows && fast.attends(kv))
    return fast.attend(*launcher, args, pool_blocks, s.longest_span, s.sequences);
  const uint32_t words = c.head_dim / 2 + 4;  // as kPrefillSharedBytes
  const uint32_t shared = ((kPrefillRows + kPrefillKeys) * words + c.head_dim * kPrefillKeyStride) * 4;
  return launcher->launch("tie_prefill_attention_" + std::to_string(c.head_dim), args,
                          {(s.longest_span + kPrefillRows - 1) / kPrefillRows, c.n_heads, s.sequences}, kPrefillThreads,
                          shared);
}

Result<void> CudaModel::State::layer(uint32_t i, const StepShape& s, const DeviceKvPool& pool) {
  const ModelConfig& c = config;
  const GpuLayer& w = layers[i];
  const uint32_t nq = c.n_heads * c.head_dim, nkv = c.n_kv_heads * c.head_dim;
  const bool small = s.rows <= kGemvRows;
  if (!small) TIE_CHECK_OK(narrow(hidden, w.attention_norm, b.narrow, c.n_embd, s.rows));
  if (s.rows == 1 && w.q.format == w.k.format && w.q.format == w.v.format)
    TIE_CHECK_OK(gemv_heads(w));
  else
    for (auto [matrix, out, n] : {std::tuple{&w.q, b.q, nq}, {&w.k, b.k, nkv}, {&w.v, b.v, nkv}})
      TIE_CHECK_OK(small ? gemv(*matrix, nullptr, hidden, w.attention_norm, out, n, s.rows, false)
                         : gemm(*matrix, b.narrow, out, n, s.rows, false));
  const PagedKv kv{reinterpret_cast<uint8_t*>(pool.base),
                   pool.layout.block_bytes(),
                   i * pool.layout.layer_bytes(),
                   pool.layout.block_tokens,
                   c.head_dim,
                   c.n_kv_heads,
                   pool.layout.type == KvType::kQ8     ? KvElement::kE4m3
                   : pool.layout.type == KvType::kBf16 ? KvElement::kBf16
                                                       : KvElement::kF16};
  const int set = whole.layer_is_local(shard.first_layer + i) ? 1 : 0;
  const HeadsArgs heads{.q = b.q,
                        .k = b.k,
                        .v = b.v,
                        .q_bias = w.q_bias,
                        .k_bias = w.k_bias,
                        .v_bias = w.v_bias,
                        .q_norm = w.q_norm,
                        .k_norm = w.k_norm,
                        .frequencies = b.frequencies[set],
                        .rows = {now.position, now.sequence, now.tables, s.table_stride},
                        .kv = kv,
                        .n_heads = c.n_heads,
                        .rope_dim = c.rope_dim,
                        .epsilon = c.norm_epsilon,
                        .scale = c.attention_scale,
                        .rope_scale = rope_magnitude[set]};
  TIE_CHECK_OK(launcher->launch("tie_finish_heads", heads, {c.n_heads + 2 * c.n_kv_heads, s.rows, 1}, kRowThreads,
                                kHeadsSharedBytes));
  TIE_CHECK_OK(attention(i, s, kv, pool.n_blocks));
  TIE_CHECK_OK(project(w.o, b.attended, w.post_attention_norm, s.rows));
  return feed_forward(w, s.rows);
}

Result<void> CudaModel::State::feed_forward(const GpuLayer& w, uint32_t rows) {
  const ModelConfig& c = config;
  if (c.n_experts != 0) return expert_feed_forward(w, rows);
  if (rows <= kGemvRows && w.gate.format == w.up.format) {
    TIE_CHECK_OK(gemv(w.gate, &w.up, hidden, w.ffn_norm, b.ffn, c.n_ff, rows, false));
    return project(w.down, b.ffn, w.post_ffn_norm, rows);
  }
  TIE_CHECK_OK(narrow(hidden, w.ffn_norm, b.narrow, c.n_embd, rows));
  TIE_CHECK_OK(gemm(w.gate, b.narrow, b.ffn, c.n_ff, rows, false));
  TIE_CHECK_OK(gemm(w.up, b.narrow, b.up, c.n_ff, rows, false));
  TIE_CHECK_OK(launcher->launch("tie_gate_to_bf16", GateArgs{b.ffn, b.up, b.narrow_ffn, c.n_ff, gate()}, {rows, 1, 1},
                                kRowThreads, kRowSharedBytes));
  TIE_CHECK_OK(
      gemm(w.down, b.narrow_ffn, w.post_ffn_norm ? b.projected : hidden, c.n_embd, rows, adds(w.post_ffn_norm)));
  return finish_projection(w.post_ffn_norm, rows);
}

Result<void> CudaModel::State::head(const StepShape& s) {
  const ModelConfig& c = config;
  if (s.logit_rows == 0) return {};
  TIE_CHECK_OK(launcher->launch("tie_gather_rows", GatherArgs{b.x, device.logit_rows, b.head_x, c.n_embd},
                                {s.logit_rows, 1, 1}, kRowThreads, 0));
  if (s.logit_rows <= kGemvRows) {
    TIE_CHECK_OK(gemv(output, nullptr, b.head_x, output_norm, b.logits, logits_stride, s.logit_rows, false));
  } else {
    TIE_CHECK_OK(narrow(b.head_x, output_norm, b.narrow, c.n_embd, s.logit_rows));
    TIE_CHECK_OK(gemm(output, b.narrow, b.logits, logits_stride, s.logit_rows, false));
  }
  if (c.logit_soft_cap > 0 || s.masked)
    TIE_CHECK_OK(launcher->launch("tie_finish_logits",
                                  FinishLogitsArgs{b.logits, s.masked ? b.masks : nullptr, c.n_vocab, logits_stride,
                                                   mask_words, c.logit_soft_cap},
                                  {(c.n_vocab + kSampleThreads - 1) / kSampleThreads, s.logit_rows, 1}, kSampleThreads,
                                  0));
  return s.top_k == 0 ? Result<void>() : find_top_k(s);
}

// What layers see of the step: the part's rows at the front of everything.
StepShape CudaModel::State::begin_part(const StepShape& step, const StepPart& part) {
  now = device;
  now.tokens += part.first_row;
  now.position += part.first_row;
  now.sequence += part.first_row;
  now.spans += part.first_span;
  hidden = b.x + uint64_t{part.first_row} * config.n_embd;
  StepShape s = step;
  s.rows = part.rows;
  s.sequences = part.spans;
  s.longest_span = part.longest_span;
  return s;
}

Result<void> CudaModel::State::enqueue(const StepShape& step, const DeviceKvPool& kv) {
  for (const StepPart& part : std::span(parts).first(step.parts)) {
    const StepShape s = begin_part(step, part);
    TIE_CHECK_OK(begin_rows(s));
    for (uint32_t i = 0; i < config.n_layers; ++i) TIE_CHECK_OK(layer(i, s, kv));
    if (!shard.last_stage) TIE_CHECK_OK(send_rows(s));
  }
  return shard.last_stage ? head(step) : Result<void>();
}

// ---- a step ----

StepShape CudaModel::State::fill_batch(const Batch& batch, const KvLayout& layout) {
  StepShape s;
  s.rows = static_cast<uint32_t>(batch.tokens.size());
  s.sequences = static_cast<uint32_t>(batch.sequences.size());
  s.logit_rows = static_cast<uint32_t>(batch.logit_rows.size());
  s.decode = true;
  uint32_t longest_table = kLeastStride;
  for (const SequenceSpan& span : batch.sequences)
    longest_table = std::max(longest_table, layout.blocks_for(span.first_position + span.n_rows));
  s.table_stride = std::bit_ceil(longest_table);
  for (uint32_t i = 0; i < s.sequences; ++i) {
    const SequenceSpan& span = batch.sequences[i];
    s.decode = s.decode && span.n_rows == 1;
    std::copy_n(span.block_table.data(), layout.blocks_for(span.first_position + span.n_rows),
                host.tables + uint64_t{i} * s.table_stride);
    for (uint32_t row = 0; row < span.n_rows; ++row) {
      host.position[span.first_row + row] = span.first_position + row;
      host.sequence[span.first_row + row] = i;
    }
  }
  std::copy(batch.tokens.begin(), batch.tokens.end(), host.tokens);
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), host.logit_rows);
  fill_parts(batch, s);
  return s;
}

// A sequence that is cut between parts is a prompt in chunks. Every stage cuts alike.
void CudaModel::State::fill_parts(const Batch& batch, StepShape& s) {
  if (options.stages) s.parts = std::clamp(s.rows / options.micro_batch_rows, 1u, options.stages->ranks());
  uint32_t n_spans = 0;
  for (uint32_t i = 0; i < s.parts; ++i) {
    const RowRange rows = rows_of_part(s.rows, i, s.parts);
    StepPart& part = parts[i] = {.first_row = rows.first, .rows = rows.last - rows.first, .first_span = n_spans};
    for (uint32_t sequence = 0; sequence < s.sequences; ++sequence) {
      const SequenceSpan span = span_within(batch.sequences[sequence], rows);
      if (span.n_rows == 0) continue;
      host.spans[n_spans++] = {span.first_row, span.n_rows, span.first_position, sequence};
      part.longest_span = std::max(part.longest_span, span.n_rows);
    }
    part.spans = n_spans - part.first_span;
  }
}

Result<void> CudaModel::State::check(const Batch& batch, const DeviceKvPool& kv) const {
  const BatchLimits limits{options.max_batch_rows, options.max_logit_rows, options.max_sequences};
  // Block numbers, not addresses, are what is checked.
  ModelConfig here = config;
  here.n_vocab = whole.n_vocab;
  TIE_CHECK_OK(check_batch(here, limits, batch, {reinterpret_cast<std::byte*>(kv.base), kv.n_blocks, kv.layout}));
  if (!batch.embeddings.empty()) return fail(Code::kUnsupportedFeature, "the GPU back end takes token ids alone");
  for (const BestOf& want : batch.best)
    if (want.k > options.max_top_k) return fail(Code::kBadRequest, "more ids are asked for than the model's limit");
  for (const SequenceSpan& span : batch.sequences)
    if (kv.layout.blocks_for(span.first_position + span.n_rows) > options.max_table_blocks / 2)
      return fail(Code::kContextExceeded, "a sequence has more blocks than the GPU's block tables hold");
  return {};
}

// Rows that are wanted whole are skipped by the kernels that look for the best: no id is below 0.
void CudaModel::State::fill_wants(std::span<const BestOf> wants, StepShape& s) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < wants.size(); ++i) {
    const BestOf& want = wants[i];
    host.below[i] = want.k == 0 ? 0 : want.below;
    most = std::max(most, want.k);
    s.masked = s.masked || (want.k != 0 && want.mask != nullptr);
  }
  if (most != 0) s.top_k = std::min(std::bit_ceil(most), options.max_top_k);  // few shapes, so few graphs
  if (!s.masked) return;
  for (uint32_t i = 0; i < wants.size(); ++i) put_mask(wants[i], i);
}

// This shard's part; it begins at a multiple of 16, which may be the middle of a word.
void CudaModel::State::put_mask(const BestOf& want, uint32_t row) {
  uint32_t* to = reinterpret_cast<uint32_t*>(host_masks.data()) + uint64_t{row} * mask_words;
  if (want.k == 0 || !want.mask) {
    std::fill_n(to, mask_words, ~0u);
    return;
  }
  const uint32_t words = want.mask_words(whole.n_vocab), first = shard.first_vocab / 32, shift = shard.first_vocab % 32;
  auto word = [&](uint32_t at) { return uint64_t{at < words ? want.mask[at] : 0u}; };
  for (uint32_t i = 0; i < mask_words; ++i)
    to[i] = static_cast<uint32_t>((word(first + i) | word(first + i + 1) << 32) >> shift);
}

Result<StepShape> CudaModel::State::step(const Batch& batch, const DeviceKvPool& kv) {
  TIE_CHECK_OK(check(batch, kv));
  StepShape s = fill_batch(batch, kv.layout);
  fill_wants(batch.best, s);
  if (s.masked && shard.last_stage)
    TIE_CHECK_OK(launcher->copy_in(reinterpret_cast<DevicePtr>(b.masks), host_masks.data(),
                                   uint64_t{s.logit_rows} * mask_words * 4));
  const auto* end = reinterpret_cast<const uint8_t*>(host.tables + uint64_t{s.sequences} * s.table_stride);
  TIE_CHECK_OK(launcher->copy_in(batch_memory.at(), host_batch.data(), static_cast<size_t>(end - host_batch.data())));
  if (!s.decode || !options.graphs) {
    TIE_CHECK_OK(enqueue(s, kv));
    return s;
  }
  // A shape that is new runs as it is, which also loads its kernels (a capture may not); the second time it is
  // captured.
  if (graphs.size() >= kMaxGraphs && !graphs.contains(s.key(kv.base))) graphs.clear();
  auto [found, fresh] = graphs.try_emplace(s.key(kv.base));
  if (fresh) {
    TIE_CHECK_OK(enqueue(s, kv));
    return s;
  }
  if (!found->second.captured()) {
    TIE_TRY(found->second, launcher->capture([&] { return enqueue(s, kv); }));
  }
  ++launches;
  TIE_CHECK_OK(launcher->replay(found->second));
  return s;
}

Result<void> CudaModel::check(const Batch& batch, const DeviceKvPool& kv) const {
  return state_->check(batch, kv);
}

// The rows that are wanted whole, neighbours in one copy.
Result<void> CudaModel::State::fetch_rows(const Batch& batch) {
  auto whole_row = [&](size_t row) { return batch.best.empty() || batch.best[row].k == 0; };
  const size_t row_bytes = uint64_t{logits_stride} * 4, n = batch.logit_rows.size();
  for (size_t row = 0, last; row < n; row = last) {
    for (last = row; last < n && whole_row(last);) ++last;
    if (last > row)
      TIE_CHECK_OK(launcher->copy_out(host_out.data() + row * row_bytes,
                                      reinterpret_cast<DevicePtr>(b.logits) + row * row_bytes,
                                      (last - row) * row_bytes));
    else
      ++last;
  }
  return {};
}

namespace {

// Reads up to `k` of what lies in [ids][values], `stride` of each for a row; `add` gets them.
template <typename Add>
void read_best(const uint8_t* ids, const uint8_t* values, uint32_t k, Add add) {
  for (uint32_t i = 0; i < k; ++i) {
    uint32_t id;
    float value;
    std::memcpy(&id, ids + 4 * i, 4);
    std::memcpy(&value, values + 4 * i, 4);
    if (id == kNone || value <= kLowest) return;  // minus infinity and NaN come as kLowest
    add(Candidate{value, static_cast<int32_t>(id)});
  }
}

}  // namespace

Result<Logits> CudaModel::forward(const Batch& batch, const DeviceKvPool& kv) {
  State& s = *state_;
  TIE_TRY(const StepShape shape, s.step(batch, kv));
  const auto rows = s.shard.last_stage ? static_cast<uint32_t>(batch.logit_rows.size()) : 0u;
  const uint32_t k = shape.top_k;
  const size_t count = size_t{rows} * k;
  if (rows != 0) TIE_CHECK_OK(s.fetch_rows(batch));
  if (count != 0) {
    TIE_CHECK_OK(s.launcher->copy_out(s.host_best(), reinterpret_cast<DevicePtr>(s.b.ids), count * 4));
    TIE_CHECK_OK(s.launcher->copy_out(s.host_best() + count * 4, reinterpret_cast<DevicePtr>(s.b.values), count * 4));
  }
  TIE_CHECK_OK(s.wait());
  for (uint32_t row = 0; row < rows && !batch.best.empty(); ++row) {
    Candidate* to = &s.best[size_t{row} * kMostBest];
    uint32_t& n = s.best_counts[row] = 0;
    const uint8_t* ids = s.host_best() + size_t{row} * k * 4;
    read_best(ids, ids + count * 4, batch.best[row].k, [&](const Candidate& one) { to[n++] = one; });
  }
  return Logits{reinterpret_cast<float*>(s.host_out.data()),
                s.logits_stride,
                rows,
                s.config.n_vocab,
                {s.best.data(), s.best_counts.data()}};
}

Result<void> CudaModel::copy_blocks(const DeviceKvPool& kv, std::span<const uint32_t> blocks,
                                    const PinnedMemory& records, bool to_pool) {
  State& s = *state_;
  if (blocks.size() > s.options.max_table_blocks || records.size() / kv.layout.block_bytes() < blocks.size())
    return fail(Code::kTooLarge, "more KV blocks than the memory beside them holds");
  for (uint32_t block : blocks)
    if (block >= kv.n_blocks) return fail(Code::kBadRequest, "a block number exceeds the KV pool");
  if (blocks.empty()) return {};
  // Pinned memory is seen by the GPU at its own address.
  const CopyBlocksArgs args{reinterpret_cast<uint8_t*>(kv.base), records.data(), s.b.block_list,
                            kv.layout.block_bytes(), to_pool};
  return s.launcher->beside([&](Launcher& other) -> Result<void> {
    TIE_CHECK_OK(other.copy_in(reinterpret_cast<DevicePtr>(s.b.block_list), blocks.data(), blocks.size_bytes()));
    return other.launch("tie_copy_blocks", args, {static_cast<uint32_t>(blocks.size()), 1, 1}, kRowThreads, 0);
  });
}

}  // namespace tie::bones::cuda
