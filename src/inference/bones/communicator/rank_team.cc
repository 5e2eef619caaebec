#include "inference/bones/communicator/rank_team.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace tie::bones {
namespace {

constexpr uint32_t kFollowerSpinUs = 200;  // a decode step follows within microseconds

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

// The published step as a batch; owns what the views point to.
class PublishedStep {
 public:
  Result<void> read(RankSegment& segment, const ModelConfig& whole, std::span<std::byte> kv_memory) {
    const StepRecord step = segment.header().step;
    const RankLimits& l = segment.limits();
    if (step.n_tokens > l.max_batch_rows || step.n_sequences > l.max_sequences ||
        step.n_logit_rows > l.max_logit_rows || step.n_embeddings > l.max_batch_rows)
      return fail(Code::kCorrupt, "the published step exceeds the segment's limits");
    sequences_.clear();
    for (uint32_t i = 0; i < step.n_sequences; ++i) {
      const StoredSpan span = segment.spans()[i];
      if (span.first_entry > l.max_table_entries || span.n_entries > l.max_table_entries - span.first_entry)
        return fail(Code::kCorrupt, "the published step exceeds the segment's limits");
      sequences_.push_back(
          {span.first_row, span.n_rows, span.first_position, {segment.table() + span.first_entry, span.n_entries}});
    }
    embeddings_.clear();
    for (uint32_t i = 0; i < step.n_embeddings; ++i)
      embeddings_.push_back({segment.embedding_rows()[i], segment.embeddings() + size_t{i} * l.n_embd});
    batch = {{segment.tokens(), step.n_tokens}, sequences_, {segment.logit_rows(), step.n_logit_rows}, embeddings_};
    TIE_TRY(kv.layout, KvLayout::for_model(whole, step.kv_type, step.kv_block_tokens));
    if (step.kv_offset > kv_memory.size() ||
        step.kv_blocks > (kv_memory.size() - step.kv_offset) / kv.layout.block_bytes())
      return fail(Code::kCorrupt, "the published KV pool lies outside the shared memory");
    kv.base = kv_memory.data() + step.kv_offset;
    kv.n_blocks = step.kv_blocks;
    return {};
  }

  Batch batch;
  KvPool kv;

 private:
  std::vector<SequenceSpan> sequences_;
  std::vector<EmbeddingRow> embeddings_;
};

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
  if (!memory_.segment) return;
  SegmentHeader& header = memory_.segment->header();
  header.stop.store(1);
  memory_.segment->advance(header.epoch, header.followers_asleep);
}

Result<void> RankLeader::publish(const Batch& batch, const KvPool& kv) {
  RankSegment& s = *memory_.segment;
  const size_t kv_bytes = kv.n_blocks * kv.layout.block_bytes();
  if (kv.base < memory_.kv.data() || kv_bytes > memory_.kv.size() ||
      static_cast<size_t>(kv.base - memory_.kv.data()) > memory_.kv.size() - kv_bytes)
    return fail(Code::kBadRequest, "the KV pool does not lie in the memory that the ranks share");
  uint32_t entries = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceSpan& span = batch.sequences[i];
    const uint32_t n = kv.layout.blocks_for(span.first_position + span.n_rows);
    if (n > s.limits().max_table_entries - entries)
      return fail(Code::kTooLarge, "the step's block tables exceed the segment of the ranks");
    std::copy_n(span.block_table.data(), n, s.table() + entries);
    s.spans()[i] = {span.first_row, span.n_rows, span.first_position, entries, n};
    entries += n;
  }
  std::copy(batch.tokens.begin(), batch.tokens.end(), s.tokens());
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), s.logit_rows());
  for (size_t i = 0; i < batch.embeddings.size(); ++i) {
    s.embedding_rows()[i] = batch.embeddings[i].row;
    std::copy_n(batch.embeddings[i].values, s.limits().n_embd, s.embeddings() + i * s.limits().n_embd);
  }
  s.header().step = {static_cast<uint32_t>(batch.tokens.size()),
                     static_cast<uint32_t>(batch.sequences.size()),
                     static_cast<uint32_t>(batch.logit_rows.size()),
                     static_cast<uint32_t>(batch.embeddings.size()),
                     kv.layout.type,
                     kv.layout.block_tokens,
                     kv.n_blocks,
                     static_cast<uint64_t>(kv.base - memory_.kv.data())};
  for (uint32_t stage = 0; stage < s.limits().grid.stages; ++stage)
    s.header().progress[stage].parts.store(0, std::memory_order_relaxed);
  return {};
}

Result<Logits> RankLeader::forward(const Batch& batch, const KvPool& kv) {
  RankSegment& s = *memory_.segment;
  TIE_CHECK_OK(model_->check(batch, kv));
  if (batch.embeddings.size() > s.limits().max_batch_rows)
    return fail(Code::kBadRequest, "a batch has more embeddings than rows");
  if (s.failed()) return fail(Code::kRuntimeLost, "a rank of the model is lost");
  TIE_CHECK_OK(publish(batch, kv));
  s.advance(s.header().epoch, s.header().followers_asleep);
  TIE_TRY(Logits logits, model_->forward(batch, kv));
  if (!s.meet(s.header().world, s.limits().grid.count()))
    return fail(Code::kRuntimeLost, "a rank of the model is lost");
  return logits;
}

Result<void> follow(RankMemory memory, uint32_t rank, ModelOptions options) {
  TIE_TRY(Rank self, attach_rank(memory, rank, options));
  RankSegment& s = *memory.segment;
  PublishedStep step;
  for (uint32_t epoch = 0; s.wait_for_step(epoch, kFollowerSpinUs); ++epoch) {
    auto ran = [&]() -> Result<void> {
      TIE_CHECK_OK(step.read(s, self.model.config(), memory.kv));
      TIE_TRY([[maybe_unused]] Logits logits, self.model.forward(step.batch, step.kv));
      if (!s.meet(s.header().world, s.limits().grid.count()))
        return fail(Code::kRuntimeLost, "a rank of the model is lost");
      return {};
    }();
    if (ran) continue;
    s.fail();  // whoever cannot take part must not be waited for
    return ran;
  }
  if (s.header().stop.load() != 0) return {};
  return fail(Code::kRuntimeLost, "a rank of the model is lost");
}

}  // namespace tie::bones
