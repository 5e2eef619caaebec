#include "inference/bones/ops/workspace.h"

#include <sys/mman.h>

#include <algorithm>

namespace tie::bones {

bool Arena::allocate() {
  constexpr size_t kHuge = size_t{2} << 20;
  memory_bytes_ = (used_ + kHuge - 1) / kHuge * kHuge + kHuge;
  void* raw = mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0);  // zeroed; paid for when touched
  if (raw == MAP_FAILED) return false;
  memory_.reset(static_cast<std::byte*>(raw));
  memory_.get_deleter().bytes = memory_bytes_;
  madvise(raw, memory_bytes_, MADV_HUGEPAGE);  // a hint; refusal is harmless
  start_ = memory_.get() + (kHuge - reinterpret_cast<uintptr_t>(raw) % kHuge) % kHuge;
  used_ = 0;
  return true;
}

void UnmapMemory::operator()(std::byte* p) const {
  munmap(p, bytes);
}

Activations take_activations(Arena& arena, uint32_t max_rows, uint32_t k) {
  const size_t rows = size_t{max_rows} + kMostTileRows /* the last tile's padding */, per_row = k / kBlock;
  Activations a;
  a.k = k;
  a.codes = arena.take<int8_t>(rows * k);
  a.scale = arena.take<float>(rows * per_row);
  a.sum = arena.take<float>(rows * per_row);
  a.start4 = arena.take<int32_t>(rows * per_row);
  a.neg128 = arena.take<int32_t>(rows * per_row);
  a.neg32 = arena.take<int32_t>(rows * per_row * 2);
  a.f32 = arena.take<float>(rows * k);
  a.f32_stride = k;
  return a;
}

Activations rows_from(const Activations& all, size_t first) {
  Activations part = all;
  const size_t blocks = first * all.blocks();
  part.codes += first * all.k;
  part.scale += blocks;
  part.sum += blocks;
  part.start4 += blocks;
  part.neg128 += blocks;
  part.neg32 += 2 * blocks;
  part.f32 += first * all.f32_stride;
  return part;
}

void Workspace::lay_out(const ModelConfig& c, uint32_t n_threads) {
  const size_t rows = max_rows, nq = size_t{c.n_heads} * c.head_dim, nkv = size_t{c.n_kv_heads} * c.head_dim;
  x = arena.take<float>(rows * c.n_embd);
  projected = arena.take<float>(rows * c.n_embd);
  q = arena.take<float>(rows * nq);
  k = arena.take<float>(rows * nkv);
  v = arena.take<float>(rows * nkv);
  attended = arena.take<float>(rows * nq);
  for (int set = 0; set < 2; ++set) {
    cos[set] = arena.take<float>(rows * (c.rope_dim / 2));
    sin[set] = arena.take<float>(rows * (c.rope_dim / 2));
  }
  head_in = arena.take<float>(size_t{max_logit_rows} * c.n_embd);
  logits_stride = (c.n_vocab + 15) / 16 * 16 + 16;  // one line more, so that rows do not collide in the caches
  logits = arena.take<float>(max_logit_rows * logits_stride);
  best = {arena.take<Candidate>(size_t{n_threads} * max_logit_rows * kMostBest),
          arena.take<uint32_t>(size_t{n_threads} * max_logit_rows), n_threads, max_logit_rows};
  best_rows = arena.take<Candidate>(size_t{max_logit_rows} * kMostBest);
  best_counts = arena.take<uint32_t>(max_logit_rows);
  position = arena.take<uint32_t>(rows);
  sequence = arena.take<uint32_t>(rows);
  in_acts = take_activations(arena, max_rows, c.n_embd);
  attention_acts = take_activations(arena, max_rows, static_cast<uint32_t>(nq));
  ffn_acts = take_activations(arena, max_rows, c.n_ff);
  head_acts = take_activations(arena, max_logit_rows, c.n_embd);
  partial_acc = arena.take<float>(size_t{kSplitPartials} * kAttentionRows * c.head_dim);
  partials = arena.take<AttentionPartial>(kSplitPartials);
  next_item = arena.take<std::atomic<uint32_t>>(size_t{c.n_layers} * 16);
  blocks_done = arena.take<std::atomic<uint32_t>>(size_t{kSplitTiles} * n_threads * 16);
  const uint32_t widest = std::max({c.n_embd, c.n_ff, static_cast<uint32_t>(nq)});
  threads.resize(n_threads);
  for (ThreadScratch& t : threads) {
    t.matmul = arena.take<std::byte>(matmul_scratch_bytes(widest));
    t.row_scale = arena.take<float>(std::max(rows, size_t{max_logit_rows}));
    t.gate = arena.take<float>(std::max<size_t>(rows * 32 * kScaleBlocks, kGateFloats));
    t.up = arena.take<float>(std::max<size_t>(rows * 32 * kScaleBlocks, kGateFloats));
    t.in_acts = take_activations(arena, kSmallBatchRows, c.n_embd);
    t.attention_acts = take_activations(arena, kSmallBatchRows, static_cast<uint32_t>(nq));
    t.queries = arena.take<std::byte>(kItemTiles * attention_scratch_bytes(c.head_dim));
    t.block = arena.take<float>(size_t{kAttentionRows} * c.head_dim);
    t.heads = arena.take<float>(size_t{kAttentionRows} * c.head_dim);
    t.top.reserve(c.n_vocab, kMostBest);
    t.totals = arena.take<float>(size_t{kItemTiles} * kAttentionRows * c.head_dim);
  }
}

bool Workspace::allocate(const ModelConfig& config, const ModelOptions& options) {
  max_rows = options.max_batch_rows;
  max_logit_rows = options.max_logit_rows;
  lay_out(config, options.pool->size());
  if (!arena.allocate()) return false;
  lay_out(config, options.pool->size());
  for (uint32_t i = 0; i < kSplitPartials; ++i)
    partials[i].acc = partial_acc + size_t{i} * kAttentionRows * config.head_dim;
  const uint32_t group = config.n_heads / config.n_kv_heads;
  const size_t per_head = (size_t{max_rows} * group) / kAttentionRows + std::min(options.max_sequences, max_rows);
  items.reserve(per_head * config.n_kv_heads + 1);
  for (std::vector<KeyCut>& c : cuts) c.reserve(threads.size() + 1);
  return true;
}

void Workspace::set_scale_groups(bool layers_folded, bool head_folded) {
  const uint32_t layers = layers_folded ? kScaleBlocks : 1;
  for (Activations* acts : {&in_acts, &attention_acts, &ffn_acts}) acts->group = layers;
  for (ThreadScratch& t : threads) t.in_acts.group = t.attention_acts.group = layers;
  head_acts.group = head_folded ? kScaleBlocks : 1;
}

}  // namespace tie::bones
