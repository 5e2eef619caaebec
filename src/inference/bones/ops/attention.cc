#include "inference/bones/ops/attention.h"

#include <algorithm>

namespace tie::bones {
namespace {

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

KeyBlocks key_blocks(
    const AttentionJob& job) {  // rows are in order of position: the first begins first, the last ends last
  return {job.key_begin[0] / kKeyBlock, (job.key_end[job.n_rows - 1] + kKeyBlock - 1) / kKeyBlock};
}

// Attends to one more block of `total`, `first` being the first.
void attend_next(const KernelSet& kernels, const AttentionJob& job, uint32_t b, bool first, AttentionPartial& total,
                 AttentionPartial& block) {
  if (first) return kernels.attend_block(job, b, total);
  if (kernels.attend_more != nullptr && job.type == KvType::kQ8) return kernels.attend_more(job, b, total);
  kernels.attend_block(job, b, block);
  kernels.merge_partial(total, block, job.n_rows, job.head_dim);
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
  const bool split = n_threads > 1 && longest > 1 && tiles < kSplitTiles * n_threads && partials <= kSplitPartials;
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
  for (uint32_t local = 0; split && local < 2; ++local)
    cut_keys(ws.items, batch, group, local ? c.sliding_window : 0, n_threads, ws.cuts[local]);
  return {split, even};
}

void attend_items(const KernelSet& kernels, Workspace& ws, const ModelConfig& c, const Batch& batch, const KvPool& kv,
                  const AttentionLayer& layer, uint32_t thread, const ItemShare& items, const ItemHook& before) {
  std::atomic<uint32_t>& next = ws.next_item[size_t{layer.layer} * 16];
  const ThreadScratch& scratch = ws.threads[thread];
  AttentionJob jobs[kItemTiles], ahead;
  AttentionPartial totals[kItemTiles], block;
  KeyBlocks blocks[kItemTiles];
  block.acc = scratch.block;
  const auto end = items.waiting ? static_cast<uint32_t>(ws.items.size()) : items.last;
  uint32_t own = items.first;
  auto take = [&] { return items.waiting ? next.fetch_add(1, std::memory_order_relaxed) : own++; };
  for (uint32_t i = take(); i < end; i = take()) {
    const AttentionItem& item = ws.items[i];
    if (before.call) before.call(before.context, item, nullptr, true);
    const uint32_t tiles = (item.n_pairs + kAttentionRows - 1) / kAttentionRows;
    KeyBlocks all{~0u, 0};
    for (uint32_t t = 0; t < tiles; ++t) {
      fill_job(ws, c, batch, kv, layer, item, t, jobs[t]);
      jobs[t].prepared = scratch.queries + t * attention_scratch_bytes(c.head_dim);
      if (kernels.prepare_queries) kernels.prepare_queries(jobs[t]);
      totals[t].acc = scratch.totals + size_t{t} * kAttentionRows * c.head_dim;
      blocks[t] = key_blocks(jobs[t]);
      all = {std::min(all.first, blocks[t].first), std::max(all.last, blocks[t].last)};
    }
    const bool known = !items.waiting && i + 1 < end;  // what comes after the item
    if (known) fill_job(ws, c, batch, kv, layer, ws.items[i + 1], 0, ahead);
    for (uint32_t b = all.first; b < all.last; ++b) {  // a block of keys stays in the caches for all tiles
      for (uint32_t t = 0; t < tiles; ++t) {
        if (b < blocks[t].first || b >= blocks[t].last) continue;
        const bool last = b + 1 == blocks[t].last;
        jobs[t].next = !last ? &jobs[t] : known ? &ahead : nullptr;
        jobs[t].next_block = !last ? b + 1 : known ? key_blocks(ahead).first : 0;
        attend_next(kernels, jobs[t], b, b == blocks[t].first, totals[t], block);
      }
    }
    for (uint32_t t = 0; t < tiles; ++t) write_out(kernels, ws, c, batch, item, t, totals[t], kv.layout.type);
  }
}

namespace {

KeyShare key_share(const Workspace& ws, const ModelConfig& c, const Batch& batch, const AttentionLayer& layer,
                   uint32_t thread) {
  return {ws.items, batch, c.n_heads / c.n_kv_heads, layer.window, ws.cuts[layer.window != 0 ? 1 : 0], thread};
}

// Whether all parts of an item are done, this one included. Whoever is last starts the count for the next layer again:
// others begin that behind a barrier.
bool item_done(std::atomic<uint32_t>& done, const KeyPart& part) {
  const uint32_t own = part.own.last - part.own.first, all = part.of_item.last - part.of_item.first;
  if (done.fetch_add(own, std::memory_order_acq_rel) + own != all) return false;
  done.store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace

void attend_split(const KernelSet& kernels, Workspace& ws, const ModelConfig& c, const Batch& batch, const KvPool& kv,
                  const AttentionLayer& layer, uint32_t thread, const ItemHook& before) {
  const ThreadScratch& scratch = ws.threads[thread];
  AttentionPartial own{}, block{};
  own.acc = scratch.totals, block.acc = scratch.block;
  KeyShare share = key_share(ws, c, batch, layer, thread);
  AttentionJob jobs[2];  // of this part and of the next
  KeyPart part, next;
  bool more = share.take(next);
  if (more) fill_job(ws, c, batch, kv, layer, ws.items[next.item], 0, jobs[0]);
  for (uint32_t n = 0; more; ++n) {
    part = next;
    more = share.take(next);
    const AttentionItem& item = ws.items[part.item];
    AttentionJob &job = jobs[n % 2], &ahead = jobs[(n + 1) % 2];
    if (more) fill_job(ws, c, batch, kv, layer, ws.items[next.item], 0, ahead);
    if (before.call) {
      before.call(before.context, item, scratch.heads, part.newest());
      for (uint32_t i = 0; i < job.n_rows; ++i) job.q[i] = scratch.heads + size_t{i} * c.head_dim;
    }
    job.prepared = scratch.queries;
    if (kernels.prepare_queries) kernels.prepare_queries(job);
    AttentionPartial* partials = ws.partials + item.first_partial;
    AttentionPartial& total = part.whole() ? own : partials[0];
    const bool begins = part.own.first == part.of_item.first;
    for (uint32_t b = part.own.first; b < part.own.last; ++b) {
      const bool last = b + 1 == part.own.last;
      job.next = !last ? &job : more ? &ahead : nullptr;
      job.next_block = !last ? b + 1 : more ? next.own.first : 0;
      if (begins)
        attend_next(kernels, job, b, b == part.own.first, total, block);
      else
        kernels.attend_block(job, b, partials[b - part.of_item.first]);
    }
    if (!part.whole()) {
      if (!item_done(ws.blocks_done[size_t{part.item} * 16], part)) continue;
      for (uint32_t b = part.first_end; b < part.of_item.last; ++b)
        kernels.merge_partial(total, partials[b - part.of_item.first], item.n_pairs, c.head_dim);
    }
    write_out(kernels, ws, c, batch, item, 0, total, kv.layout.type);
  }
}

void fetch_split(const Workspace& ws, const ModelConfig& c, const Batch& batch, const KvPool& kv,
                 const AttentionLayer& layer, uint32_t thread) {
  KeyPart part;
  if (!key_share(ws, c, batch, layer, thread).take(part)) return;
  const AttentionItem& item = ws.items[part.item];
  const SequenceSpan& span = batch.sequences[item.sequence];
  const KvLayout& layout = kv.layout;
  const uint32_t first = part.own.first * kKeyBlock;
  for (uint32_t key = first; key < first + kKeyBlock && key < span.first_position; key += layout.block_tokens) {
    const std::byte* record = kv.block(span.block_table[key / layout.block_tokens]) +
                              layer.layer * layout.layer_bytes() + item.kv_head * layout.head_bytes();
    for (size_t at = 0; at < layout.head_bytes(); at += 64) __builtin_prefetch(record + at);
  }
}

}  // namespace tie::bones
