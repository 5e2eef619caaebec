#include "inference/bones/rank_place.h"

#include <algorithm>
#include <string>

namespace tie::bones {
namespace {

constexpr uint32_t kVocabularyUnit = 16, kInputUnit = 32;
// Columns of the feed-forward: groups of activations that share a scale stay whole where there are enough of them.
constexpr uint32_t kScaleGroupUnit = 128;

struct Range {
  uint32_t first, n;
};

// Part `rank` of `ranks` of `total`, cut at multiples of `unit`.
Range part(uint32_t total, uint32_t unit, uint32_t rank, uint32_t ranks) {
  const uint32_t units = (total + unit - 1) / unit;
  auto cut = [&](uint32_t r) { return std::min(total, static_cast<uint32_t>(uint64_t{units} * r / ranks) * unit); };
  return {cut(rank), cut(rank + 1) - cut(rank)};
}

std::unexpected<Error> cannot(RankPlace place, const std::string& why) {
  return fail(Code::kUnsupportedFeature, "this model cannot run on " + std::to_string(place.tensor_ranks) +
                                             " tensor ranks and " + std::to_string(place.stages) + " stages: " + why);
}

Result<void> cut_heads(const ModelConfig& c, RankPlace place, Shard& shard) {
  const uint32_t group = c.n_heads / c.n_kv_heads;
  if (c.n_kv_heads >= place.tensor_ranks) {
    const Range kv = part(c.n_kv_heads, 1, place.tensor_rank, place.tensor_ranks);
    shard.first_kv_head = kv.first, shard.n_kv_heads = kv.n;
    shard.first_head = kv.first * group, shard.n_heads = kv.n * group;
  } else {
    const uint32_t copies = place.tensor_ranks / c.n_kv_heads;
    if (place.tensor_ranks % c.n_kv_heads != 0 || group < copies)
      return cannot(place, "its " + std::to_string(c.n_heads) + " heads and " + std::to_string(c.n_kv_heads) +
                               " key-value heads do not divide");
    shard.first_kv_head = place.tensor_rank / copies, shard.n_kv_heads = 1;
    const Range heads = part(group, 1, place.tensor_rank % copies, copies);
    shard.first_head = shard.first_kv_head * group + heads.first, shard.n_heads = heads.n;
  }
  if (shard.first_head * c.head_dim % kInputUnit != 0 || shard.n_heads * c.head_dim % kInputUnit != 0)
    return cannot(place, "a rank's heads are not a multiple of 32 wide");
  return {};
}

}  // namespace

Result<Shard> shard_of(const ModelConfig& c, RankPlace place) {
  if (place.tensor_ranks == 0 || place.stages == 0 || place.tensor_ranks > kMaxRanks || place.stages > kMaxRanks ||
      place.count() > kMaxRanks || place.tensor_rank >= place.tensor_ranks || place.stage >= place.stages)
    return fail(Code::kBadRequest,
                "a rank lies outside its grid, or the grid has more than " + std::to_string(kMaxRanks) + " ranks");
  Shard shard;
  if (c.n_layers < place.stages) return cannot(place, "it has fewer layers than stages");
  const Range layers = part(c.n_layers, 1, place.stage, place.stages);
  shard.first_layer = layers.first, shard.n_layers = layers.n;
  shard.first_stage = place.stage == 0, shard.last_stage = place.stage + 1 == place.stages;
  TIE_CHECK_OK(cut_heads(c, place, shard));
  const bool groups = c.n_ff % kScaleGroupUnit == 0 && c.n_ff / kScaleGroupUnit >= place.tensor_ranks;
  const Range ff = part(c.n_ff, groups ? kScaleGroupUnit : kInputUnit, place.tensor_rank, place.tensor_ranks);
  const Range vocab = part(c.n_vocab, kVocabularyUnit, place.tensor_rank, place.tensor_ranks);
  if (ff.n == 0 || vocab.n == 0) return cannot(place, "a rank would have no feed-forward columns or no vocabulary");
  shard.first_ff = ff.first, shard.n_ff = ff.n;
  shard.first_vocab = vocab.first, shard.n_vocab = vocab.n;
  return shard;
}

ModelConfig shard_config(const ModelConfig& whole, const Shard& shard) {
  ModelConfig c = whole;
  c.n_layers = shard.n_layers;
  c.n_heads = shard.n_heads;
  c.n_kv_heads = shard.n_kv_heads;
  c.n_ff = shard.n_ff;
  c.n_vocab = shard.n_vocab;
  return c;
}

}  // namespace tie::bones
