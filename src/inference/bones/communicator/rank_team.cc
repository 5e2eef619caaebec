#include "inference/bones/communicator/rank_team.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "inference/bones/communicator/published_step.h"

namespace tie::bones {
namespace {

Result<void> check_limits(RankSegment& segment, const ModelConfig& whole, const ModelOptions& options) {
  const RankLimits &limits = segment.limits(), wanted = rank_limits(whole, limits.grid, options);
  if (std::memcmp(&limits, &wanted, sizeof limits) != 0)
    return fail(Code::kBadRequest, "the segment of the ranks was made for another model or other options");
  return {};
}

struct Rank {
  std::unique_ptr<SharedMemoryRanks> ranks;
  Model model;
};

Result<Rank> attach_rank(RankMemory& memory, uint32_t rank, ModelOptions& options) {
  if (!options.pool || rank >= memory.segment->limits().grid.count())
    return fail(Code::kBadRequest, "a rank needs a thread pool and a place in the segment's grid");
  if (options.pool->size() != memory.segment->limits().threads_per_rank)
    return fail(Code::kBadRequest, "a rank has another number of threads than the segment was made for");
  auto ranks = std::make_unique<SharedMemoryRanks>(*memory.segment, rank);
  options.ranks = ranks.get();
  TIE_TRY(Model model, Model::attach(memory.image, options));
  TIE_CHECK_OK(check_limits(*memory.segment, model.config(), options));
  return Rank{std::move(ranks), std::move(model)};
}

// The published pool, which must lie in the memory that the ranks share.
Result<KvPool> pool_in(std::span<std::byte> memory, const PublishedStep& step) {
  if (step.kv_offset() > memory.size() ||
      step.kv_blocks() > (memory.size() - step.kv_offset()) / step.layout().block_bytes())
    return fail(Code::kCorrupt, "the published KV pool lies outside the shared memory");
  return KvPool{memory.data() + step.kv_offset(), step.kv_blocks(), step.layout()};
}

}  // namespace

RankLimits rank_limits(const ModelConfig& whole, RankPlace grid, const ModelOptions& options) {
  RankLimits limits;
  limits.grid = {0, grid.tensor_ranks, 0, grid.stages};
  limits.threads_per_rank = options.pool ? options.pool->size() : 1;
  limits.n_embd = whole.n_embd;
  limits.n_vocab = whole.n_vocab;
  limits.max_batch_rows = options.max_batch_rows;
  limits.max_logit_rows = options.max_logit_rows;
  limits.max_sequences = options.max_sequences;
  // Blocks hold 16 tokens or more.
  const uint64_t entries = (uint64_t{whole.context_length} / 16 + 1) * options.max_sequences;
  limits.max_table_entries = static_cast<uint32_t>(std::min<uint64_t>(entries, 1u << 22));
  return limits;
}

Result<RankLeader> RankLeader::attach(RankMemory memory, ModelOptions options) {
  TIE_TRY(Rank rank, attach_rank(memory, 0, options));
  return RankLeader(std::move(memory), std::move(rank.ranks), std::move(rank.model));
}

RankLeader::~RankLeader() {
  if (memory_.segment) memory_.segment->stop();
}

Result<void> RankLeader::publish(const Batch& batch, const KvPool& kv) {
  RankSegment& s = *memory_.segment;
  const size_t kv_bytes = kv.n_blocks * kv.layout.block_bytes();
  if (kv.base < memory_.kv.data() || kv_bytes > memory_.kv.size() ||
      static_cast<size_t>(kv.base - memory_.kv.data()) > memory_.kv.size() - kv_bytes)
    return fail(Code::kBadRequest, "the KV pool does not lie in the memory that the ranks share");
  return publish_step(s, batch, kv, static_cast<uint64_t>(kv.base - memory_.kv.data()));
}

Result<Logits> RankLeader::forward(const Batch& batch, const KvPool& kv) {
  RankSegment& s = *memory_.segment;
  TIE_CHECK_OK(model_->check(batch, kv));
  if (batch.embeddings.size() > s.limits().max_batch_rows)
    return fail(Code::kBadRequest, "a batch has more embeddings than rows");
  if (s.failed()) return fail(Code::kRuntimeLost, "a rank of the model is lost");
  TIE_CHECK_OK(publish(batch, kv));
  s.begin_step();
  TIE_TRY(Logits logits, model_->forward(batch, kv));
  TIE_CHECK_OK(s.end_step());
  logits.best = model_->merge_best(batch);
  return logits;
}

Result<void> follow(RankMemory memory, uint32_t rank, ModelOptions options) {
  TIE_TRY(Rank self, attach_rank(memory, rank, options));
  RankSegment& s = *memory.segment;
  PublishedStep step;
  return s.follow([&]() -> Result<void> {
    TIE_CHECK_OK(step.read(s, self.model.config()));
    TIE_TRY(const KvPool kv, pool_in(memory.kv, step));
    TIE_TRY([[maybe_unused]] Logits logits, self.model.forward(step.batch(), kv));
    return {};
  });
}

}  // namespace tie::bones
