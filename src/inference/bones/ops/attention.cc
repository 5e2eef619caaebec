#include "inference/bones/ops/attention.h"

#include <algorithm>
#include <limits>

namespace tie::bones {
namespace {

struct Blocks {
  uint32_t first, last;
};

// Tile `tile` of an item, written where it is needed: a copy of it would wait for the stores of its fields.
void fill_job(const Workspace& ws, const ModelConfig& c, const Batch& batch, const KvPool& kv,
              const AttentionLayer& layer, const AttentionItem& item, uint32_t tile, AttentionJob& job) {
  const SequenceSpan& span = batch.sequences[item.sequence];
  const uint32_t group = c.n_heads / c.n_kv_heads;
  job.kv = kv.base + layer.layer * kv.layout.layer_bytes() + item.kv_head * kv.layout.head_bytes();
  job.block_stride = kv.layout.block_bytes();
  job.block_table = span.block_table.data();
  job.block_tokens = kv.layout.block_tokens;
  job.head_dim = c.head_dim;
  job.type = kv.layout.type;
  job.soft_cap = layer.soft_cap;
  const uint32_t first = tile * kAttentionRows;
  job.n_rows = std::min(kAttentionRows, item.n_pairs - first);
  for (uint32_t i = 0; i < job.n_rows; ++i) {
    const uint32_t pair = item.first_pair + first + i, row = pair / group, head = item.kv_head * group + pair % group;
    job.q[i] = ws.q + (size_t{span.first_row} + row) * c.n_heads * c.head_dim + size_t{head} * c.head_dim;
    job.key_end[i] = span.first_position + row + 1;
    job.key_begin[i] = layer.window != 0 && job.key_end[i] > layer.window ? job.key_end[i] - layer.window : 0;
  }
}

Blocks key_blocks(
    const AttentionJob& job) {  // rows are in order of position: the first begins first, the last ends last
  return {job.key_begin[0] / kKeyBlock, (job.key_end[job.n_rows - 1] + kKeyBlock - 1) / kKeyBlock};
}

void reset(AttentionPartial& partial, uint32_t head_dim) {
  std::fill_n(partial.max, kAttentionRows, -std::numeric_limits<float>::infinity());
  std::fill_n(partial.sum, kAttentionRows, 0.0f);
  std::fill_n(partial.acc, size_t{kAttentionRows} * head_dim, 0.0f);
}

void write_out(const KernelSet& kernels, Workspace& ws, const ModelConfig& c, const Batch& batch,
               const AttentionItem& item, uint32_t tile, const AttentionPartial& total, KvType kv_type) {
  const uint32_t group = c.n_heads / c.n_kv_heads, first = tile * kAttentionRows;
  for (uint32_t i = 0; i < std::min(kAttentionRows, item.n_pairs - first); ++i) {
    const uint32_t pair = item.first_pair + first + i, row = batch.sequences[item.sequence].first_row + pair / group,
                   head = item.kv_head * group + pair % group;
    float* out = ws.attended + size_t{row} * c.n_heads * c.head_dim + size_t{head} * c.head_dim;
    const float* acc = total.acc + size_t{i} * c.head_dim;
    if (kv_type == KvType::kQ8) {
      kernels.turn(acc, c.head_dim, out);
      acc = out;
    }
    kernels.scale_by(out, acc, 1.0f / total.sum[i], c.head_dim);
  }
}

}  // namespace

AttentionPlan plan_attention(Workspace& ws, const ModelConfig& c, const Batch& batch, uint32_t n_threads,
                             bool by_head) {
  const uint32_t group = c.n_heads / c.n_kv_heads;
  uint32_t partials = 0, longest = 0, tiles = 0, shortest = ~0u, most_pairs = 0;
  for (const SequenceSpan& span : batch.sequences) {
    const uint32_t blocks = (span.first_position + span.n_rows + kKeyBlock - 1) / kKeyBlock,
                   here = (span.n_rows * group + kAttentionRows - 1) / kAttentionRows * c.n_kv_heads;
    longest = std::max(longest, blocks), shortest = std::min(shortest, blocks);
    most_pairs = std::max(most_pairs, span.n_rows * group);
    tiles += here;
    partials = std::min(partials + std::min(here * blocks, kSplitPartials), kSplitPartials + 1);
  }
  const bool split = n_threads > 1 && longest > 1 && tiles < 4 * n_threads && partials <= kSplitPartials;
  const uint32_t per_item = split ? 1 : std::clamp(tiles / (8 * n_threads), 1u, kItemTiles);
  const bool even = !split && longest == shortest && most_pairs <= kAttentionRows;
  ws.items.clear();
  partials = 0;
  for (uint32_t head = 0; even && by_head && head < c.n_kv_heads; ++head)
    for (uint32_t s = 0; s < batch.sequences.size(); ++s)
      ws.items.push_back({s, head, 0, batch.sequences[s].n_rows * group, 0});
  if (even && by_head) return {split, even};
  for (uint32_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceSpan& span = batch.sequences[s];
    const uint32_t pairs = span.n_rows * group, step = per_item * kAttentionRows,
                   blocks = (span.first_position + span.n_rows + kKeyBlock - 1) / kKeyBlock;
    for (uint32_t first = 0; first < pairs; first += step) {
      for (uint32_t head = 0; head < c.n_kv_heads; ++head) {
        ws.items.push_back({s, head, first, std::min(step, pairs - first), partials});
        if (split) partials += blocks;
      }
    }
  }
  std::reverse(ws.items.begin(),
               ws.items.end());  // the last rows of a prompt see the most keys: start with the heavy items
  return {split, even};
}

void attend_items(const KernelSet& kernels, Workspace& ws, const ModelConfig& c, const Batch& batch, const KvPool& kv,
                  const AttentionLayer& layer, uint32_t thread, const ItemShare& items, const ItemHook& before) {
  std::atomic<uint32_t>& next = ws.next_item[size_t{layer.layer} * 16];
  const ThreadScratch& scratch = ws.threads[thread];
  AttentionJob jobs[kItemTiles];
  AttentionPartial totals[kItemTiles], block;
  Blocks blocks[kItemTiles];
  block.acc = scratch.block;
  const bool at_once = kernels.attend_more != nullptr && kv.layout.type == KvType::kQ8;
  const auto end = items.waiting ? static_cast<uint32_t>(ws.items.size()) : items.last;
  uint32_t own = items.first;
  auto take = [&] { return items.waiting ? next.fetch_add(1, std::memory_order_relaxed) : own++; };
  for (uint32_t i = take(); i < end; i = take()) {
    const AttentionItem& item = ws.items[i];
    if (before.call) before.call(before.context, item);
    const uint32_t tiles = (item.n_pairs + kAttentionRows - 1) / kAttentionRows;
    Blocks all{~0u, 0};
    for (uint32_t t = 0; t < tiles; ++t) {
      fill_job(ws, c, batch, kv, layer, item, t, jobs[t]);
      jobs[t].prepared = scratch.queries + t * attention_scratch_bytes(c.head_dim);
      if (kernels.prepare_queries) kernels.prepare_queries(jobs[t]);
      totals[t].acc = scratch.totals + size_t{t} * kAttentionRows * c.head_dim;
      blocks[t] = key_blocks(jobs[t]);
      all = {std::min(all.first, blocks[t].first), std::max(all.last, blocks[t].last)};
    }
    for (uint32_t b = all.first; b < all.last; ++b) {  // a block of keys stays in the caches for all tiles
      for (uint32_t t = 0; t < tiles; ++t) {
        if (b < blocks[t].first || b >= blocks[t].last) continue;
        const bool first = b == blocks[t].first;
        if (!first && at_once) {
          kernels.attend_more(jobs[t], b, totals[t]);
          continue;
        }
        kernels.attend_block(jobs[t], b, first ? totals[t] : block);
        if (!first) kernels.merge_partial(totals[t], block, jobs[t].n_rows, c.head_dim);
      }
    }
    for (uint32_t t = 0; t < tiles; ++t) write_out(kernels, ws, c, batch, item, t, totals[t], kv.layout.type);
  }
}

void attend_split(const KernelSet& kernels, Workspace& ws, const ModelConfig& c, const Batch& batch, const KvPool& kv,
                  const AttentionLayer& layer, uint32_t thread) {
  std::atomic<uint32_t>& next = ws.next_item[size_t{layer.layer} * 16];
  uint32_t unit = next.fetch_add(1, std::memory_order_relaxed), before = 0;
  for (const AttentionItem& item : ws.items) {
    AttentionJob job;
    fill_job(ws, c, batch, kv, layer, item, 0, job);
    const Blocks blocks = key_blocks(job);
    job.prepared = ws.threads[thread].queries;
    if (kernels.prepare_queries && unit < before + blocks.last - blocks.first) kernels.prepare_queries(job);
    for (; unit < before + blocks.last - blocks.first; unit = next.fetch_add(1, std::memory_order_relaxed)) {
      const uint32_t b = unit - before;
      kernels.attend_block(job, blocks.first + b, ws.partials[item.first_partial + b]);
    }
    before += blocks.last - blocks.first;
  }
}

void merge_split(const KernelSet& kernels, Workspace& ws, const ModelConfig& c, const Batch& batch, const KvPool& kv,
                 const AttentionLayer& layer, uint32_t thread) {
  AttentionPartial total;
  total.acc = ws.threads[thread].totals;
  for (uint32_t i = thread; i < ws.items.size(); i += static_cast<uint32_t>(ws.threads.size())) {
    const AttentionItem& item = ws.items[i];
    AttentionJob job;
    fill_job(ws, c, batch, kv, layer, item, 0, job);
    const Blocks blocks = key_blocks(job);
    reset(total, c.head_dim);
    for (uint32_t b = 0; b < blocks.last - blocks.first; ++b)
      kernels.merge_partial(total, ws.partials[item.first_partial + b], item.n_pairs, c.head_dim);
    write_out(kernels, ws, c, batch, item, 0, total, kv.layout.type);
  }
}

}  // namespace tie::bones
