#include "inference/bones/model/row_shares.h"

#include <algorithm>

#include "inference/bones/kernels/tile.h"

namespace tie::bones {
namespace {

// Below this many rows a thread waits for its weights, which all threads read then; see docs/performance-model.md.
constexpr uint32_t kLeastOwnRows = 8;

// Operations of attention, which runs at half the speed of the products: 4 a head, dimension and key.
uint64_t attention_cost(const ModelConfig& c, const SequenceSpan& span) {
  return uint64_t{8} * c.n_heads * c.head_dim * span.n_rows * (span.first_position + span.n_rows);
}

// Two operations a weight of one layer.
uint64_t product_cost(const ModelConfig& c, uint64_t rows) {
  const uint64_t heads = 2 * c.n_heads + 2 * c.n_kv_heads;
  return 2 * rows * c.n_embd * (heads * c.head_dim + uint64_t{3} * c.n_ff);
}

// Whether every share is of whole sequences and none has much more attention than another.
bool whole_and_even(const ModelConfig& c, const Batch& batch, const RowShares& shares) {
  uint64_t least = ~uint64_t{0}, most = 0;
  size_t at = 0;
  for (uint32_t thread = 0; thread < shares.n_threads; ++thread) {
    uint64_t cost = 0;
    for (; at < batch.sequences.size() && batch.sequences[at].first_row < shares.first_row(thread + 1); ++at) {
      const SequenceSpan& span = batch.sequences[at];
      if (span.first_row < shares.first_row(thread) || span.first_row + span.n_rows > shares.first_row(thread + 1))
        return false;
      cost += attention_cost(c, span);
    }
    least = std::min(least, cost), most = std::max(most, cost);
  }
  return most - least <= product_cost(c, shares.rows / shares.n_threads) / 32;
}

// Products of up to kFusedRows rows and of more want different tiles; all shares have the same. Rounded up to tiles,
// the rows may be fewer shares than there are threads: a thread without rows has no products.
bool for_one_kernel(const RowShares& shares) {
  const bool many = shares.first_row(1) > kFusedRows;
  for (uint32_t t = 0; t < shares.n_threads; ++t) {
    const uint32_t own = shares.first_row(t + 1) - shares.first_row(t);
    if (own == 0 || (own > kFusedRows) != many) return false;
  }
  return true;
}

}  // namespace

uint32_t RowShares::first_row(uint32_t thread) const {
  const uint32_t tiles = (rows + tile_rows - 1) / tile_rows;
  return std::min(static_cast<uint32_t>(uint64_t{tiles} * thread / n_threads) * tile_rows, rows);
}

RowShares plan_rows(const ModelConfig& c, const Batch& batch, uint32_t n_threads,
                    uint32_t (*tile_rows_of)(uint32_t rows)) {
  const auto rows = static_cast<uint32_t>(batch.tokens.size());
  auto tile_of = [&](uint32_t n) { return tile_rows_of ? tile_rows_of(n) : rows_per_tile(n); };
  const RowShares columns{.rows = rows, .tile_rows = tile_of(rows), .n_threads = n_threads};
  const uint32_t least = tile_rows_of ? kFusedRows + kMostTileRows : kLeastOwnRows;
  if (n_threads == 1 || c.n_experts != 0 || rows < n_threads * least) return columns;
  RowShares shares = columns;
  shares.tile_rows = tile_of((rows + n_threads - 1) / n_threads);
  if (!for_one_kernel(shares)) return columns;
  shares.apart = true, shares.whole = whole_and_even(c, batch, shares);
  return shares;
}

}  // namespace tie::bones
