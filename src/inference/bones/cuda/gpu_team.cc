#include "inference/bones/cuda/gpu_team.h"

#include <algorithm>
#include <cstring>

#include "inference/bones/communicator/rank_team.h"
#include "inference/bones/cuda/launcher.h"

namespace tie::bones::cuda {
namespace {

constexpr size_t kOrderBytes = 64;
constexpr uint32_t kMostBlockTokens = 128;
constexpr uint32_t kRehearsed = 64;  // numbers
static_assert(sizeof(TeamOrder) <= kOrderBytes);

Result<void> check_board(const ModelConfig& whole, std::span<std::byte> board) {
  if (board.size() < board_bytes(whole)) return fail(Code::kBadRequest, "the ranks' board is too small for this model");
  return {};
}

// Of the ranks of a stage that hold the same key-value heads, only the first gives their bytes.
Result<bool> is_first_with_heads(const DeviceTable& table) {
  if (table.place.tensor_rank == 0) return true;
  RankPlace before = table.place;
  --before.tensor_rank;
  TIE_TRY(const Shard mine, shard_of(table.config, table.place));
  TIE_TRY(const Shard other, shard_of(table.config, before));
  return other.first_kv_head != mine.first_kv_head;
}

Result<std::shared_ptr<NcclRanks>> join(const std::shared_ptr<Nccl>& nccl, const std::shared_ptr<Driver>& driver,
                                        const NcclUniqueId& id, uint32_t rank, uint32_t ranks,
                                        const GpuRankOptions& options, RankSegment& segment) {
  if (ranks == 1) return std::shared_ptr<NcclRanks>();
  TIE_TRY(auto joined, NcclRanks::join(nccl, driver, id,
                                       {.rank = rank,
                                        .ranks = ranks,
                                        .join_ms = options.join_ms,
                                        .step_ms = options.step_ms,
                                        .peer_lost = [&segment] { return segment.failed(); }}));
  return std::shared_ptr<NcclRanks>(std::move(joined));
}

}  // namespace

Result<std::vector<RankOffer>> offers_for(const Nccl& nccl, RankPlace grid) {
  std::vector<RankOffer> out(grid.count());
  std::vector<NcclUniqueId> of_stage(grid.stages), of_rank(grid.tensor_ranks);
  if (grid.tensor_ranks > 1)
    for (NcclUniqueId& id : of_stage) {
      TIE_TRY(id, nccl.unique_id());
    }
  if (grid.stages > 1)
    for (NcclUniqueId& id : of_rank) {
      TIE_TRY(id, nccl.unique_id());
    }
  for (uint32_t i = 0; i < grid.count(); ++i) {
    out[i].ranks = of_stage[grid.at(i).stage];
    out[i].stages = of_rank[grid.at(i).tensor_rank];
  }
  return out;
}

size_t board_bytes(const ModelConfig& whole) {
  auto largest = KvLayout::for_model(whole, KvType::kF16, kMostBlockTokens);
  return kOrderBytes + (largest ? largest->block_bytes() : 0);
}

RankLimits team_limits(const DeviceTable& table, const CudaModelOptions& options) {
  ModelOptions same;
  same.max_batch_rows = options.max_batch_rows;
  same.max_logit_rows = options.max_logit_rows;
  same.max_sequences = options.max_sequences;
  return rank_limits(table.config, table.place, same);
}

// ---- one rank ----

Result<std::unique_ptr<GpuRank>> GpuRank::attach(const DeviceTable& table, std::span<const std::byte> kernels,
                                                 const RankOffer& offer, const GpuRankOptions& options,
                                                 RankSegment& segment, std::span<std::byte> board) {
  const RankLimits wanted = team_limits(table, options.model);
  if (std::memcmp(&segment.limits(), &wanted, sizeof wanted) != 0)
    return fail(Code::kBadRequest, "the segment of the ranks was made for another model or other options");
  if (table.bytes != offer.weight_bytes) return fail(Code::kCorrupt, "the owner's GPU memory and its table differ");
  TIE_CHECK_OK(check_board(table.config, board));
  std::unique_ptr<GpuRank> out(new GpuRank(segment, board));
  TIE_TRY(out->speaks_for_heads_, is_first_with_heads(table));
  TIE_TRY(out->driver_, Driver::load_gpu(options.gpu, options.driver));
  TIE_TRY(auto nccl, Nccl::load(options.nccl));
  const RankPlace& place = table.place;
  TIE_TRY(out->ranks_, join(nccl, out->driver_, offer.ranks, place.tensor_rank, place.tensor_ranks, options, segment));
  TIE_TRY(out->stages_, join(nccl, out->driver_, offer.stages, place.stage, place.stages, options, segment));
  TIE_TRY(DeviceMemory weights, DeviceMemory::attach(out->driver_, offer.weights, table.bytes));
  CudaModelOptions limits = options.model;
  limits.ranks = out->ranks_;
  limits.stages = out->stages_;
  TIE_TRY(CudaModel model, CudaModel::attach(out->driver_, kernels, table, std::move(weights), limits));
  out->model_ = std::make_unique<CudaModel>(std::move(model));
  TIE_CHECK_OK(out->rehearse());
  return out;
}

Result<void> GpuRank::rehearse() {
  TIE_TRY(const DeviceMemory memory, DeviceMemory::allocate(driver_, size_t{kRehearsed} * 4));
  TIE_CHECK_OK(fill_now(*driver_, memory.at(), 0, memory.size()));
  auto* numbers = reinterpret_cast<float*>(memory.at());
  void* stream = nullptr;
  TIE_CHECK_OK(driver_->check(driver_->stream_create(&stream, 1), "making a stream"));
  auto done = [&]() -> Result<void> {
    if (ranks_) {
      TIE_CHECK_OK(ranks_->all_reduce(numbers, kRehearsed, stream));
      TIE_CHECK_OK(ranks_->wait(stream));
    }
    if (!stages_) return {};
    if (stages_->rank() > 0) TIE_CHECK_OK(stages_->receive(numbers, kRehearsed, stages_->rank() - 1, stream));
    if (stages_->rank() + 1 < stages_->ranks())
      TIE_CHECK_OK(stages_->send(numbers, kRehearsed, stages_->rank() + 1, stream));
    return stages_->wait(stream);
  }();
  driver_->stream_destroy(stream);
  return done;
}

Result<void> GpuRank::reserve(const TeamOrder& order) {
  const ModelConfig& whole = model_->config();
  TIE_TRY(layout_, KvLayout::for_model(whole, order.kv_type, order.block_tokens));
  if (layout_.block_bytes() > board_.size() - kOrderBytes)
    return fail(Code::kTooLarge, "a KV block is larger than the ranks' board");
  TIE_TRY(const KvLayout part, KvLayout::for_model(model_->part(), order.kv_type, order.block_tokens));
  kv_.reset();
  TIE_TRY(DeviceKv kv, DeviceKv::create(driver_, part, order.n_blocks));
  kv_.emplace(std::move(kv));
  return {};
}

void GpuRank::move_part(bool from_board) {
  const Shard& shard = model_->shard();
  const size_t bytes = shard.n_kv_heads * layout_.head_bytes();
  std::byte* whole = board_.data() + kOrderBytes + shard.first_kv_head * layout_.head_bytes();
  std::byte* part = kv_->staging().data();
  for (uint32_t i = 0; i < shard.n_layers; ++i) {
    std::byte* there = whole + (shard.first_layer + i) * layout_.layer_bytes();
    if (from_board)
      std::memcpy(part + i * bytes, there, bytes);
    else if (speaks_for_heads_)
      std::memcpy(there, part + i * bytes, bytes);
  }
}

Result<void> GpuRank::check(const Batch& batch) const {
  if (!kv_) return fail(Code::kFailedPrecondition, "no KV pool has been reserved");
  return model_->check(batch, kv_->pool());
}

Result<void> GpuRank::step(const Batch& batch) {
  TIE_TRY(const Logits part, model_->forward(batch, kv_->pool()));
  const BestTable table = segment_.best();
  const uint32_t list = ranks_ ? ranks_->rank() : 0;
  for (uint32_t row = 0; row < part.rows; ++row) {
    if (!batch.best.empty() && batch.best[row].k > 0) {
      const auto best = part.best.row(row);
      std::copy(best.begin(), best.end(), table.list(list, row));
      table.count(list, row) = static_cast<uint32_t>(best.size());
      continue;
    }
    std::copy_n(part.data + row * part.stride, part.n_vocab,
                segment_.logits() + row * segment_.logits_stride() + model_->shard().first_vocab);
  }
  return {};
}

Result<void> GpuRank::run(const TeamOrder& order, const Batch& batch) {
  if (order.kind == TeamOrder::kReserve) return reserve(order);
  if (!kv_) return fail(Code::kFailedPrecondition, "no KV pool has been reserved");
  switch (order.kind) {
    case TeamOrder::kStep:
      return step(batch);
    case TeamOrder::kPut:
      move_part(true);
      return kv_->put(order.block);
    case TeamOrder::kGet:
      TIE_CHECK_OK(kv_->get(order.block));
      move_part(false);
      return {};
    case TeamOrder::kZero:
      return kv_->zero(order.block);
    case TeamOrder::kCopy:
      return kv_->copy(order.block, order.from);
    default:
      return fail(Code::kCorrupt, "an order that no rank knows");
  }
}

// ---- the leader ----

Result<std::unique_ptr<GpuTeamLeader>> GpuTeamLeader::attach(const DeviceTable& table,
                                                             std::span<const std::byte> kernels, const RankOffer& offer,
                                                             const GpuRankOptions& options, RankSegment segment,
                                                             std::span<std::byte> board) {
  if (table.place.index() != 0) return fail(Code::kBadRequest, "the first rank leads");
  std::unique_ptr<GpuTeamLeader> out(new GpuTeamLeader(std::move(segment), board));
  TIE_TRY(out->rank_, GpuRank::attach(table, kernels, offer, options, out->segment_, board));
  return out;
}

GpuTeamLeader::~GpuTeamLeader() {
  segment_.stop();
}

Result<void> GpuTeamLeader::order(const TeamOrder& order, const Batch& batch) {
  if (segment_.failed()) return fail(Code::kRuntimeLost, "a rank of the model is lost");
  TIE_CHECK_OK(rank_->use_on_this_thread());
  std::memcpy(board_.data(), &order, sizeof order);
  segment_.begin_step();
  auto done = rank_->run(order, batch);
  if (!done) {
    segment_.fail();  // the others are in the middle of it
    return done;
  }
  return segment_.end_step();
}

Result<Logits> GpuTeamLeader::forward(const Batch& batch) {
  TIE_CHECK_OK(rank_->check(batch));
  TIE_CHECK_OK(publish_step(segment_, batch, {nullptr, rank_->n_blocks(), rank_->layout()}, 0));
  TIE_CHECK_OK(order({.kind = TeamOrder::kStep}, batch));
  return Logits{segment_.logits(), segment_.logits_stride(), static_cast<uint32_t>(batch.logit_rows.size()),
                model().config().n_vocab, merge_best(segment_.best(), batch.best, best_.data(), best_counts_.data())};
}

Result<void> GpuTeamLeader::reserve(const KvLayout& layout, uint32_t n_blocks) {
  return order(
      {.kind = TeamOrder::kReserve, .n_blocks = n_blocks, .kv_type = layout.type, .block_tokens = layout.block_tokens},
      {});
}

std::span<std::byte> GpuTeamLeader::staging() {
  return board_.subspan(kOrderBytes, rank_->layout().block_bytes());
}

Result<void> GpuTeamLeader::put(uint32_t block) {
  return order({.kind = TeamOrder::kPut, .block = block}, {});
}
Result<void> GpuTeamLeader::get(uint32_t block) {
  return order({.kind = TeamOrder::kGet, .block = block}, {});
}
Result<void> GpuTeamLeader::zero(uint32_t block) {
  return order({.kind = TeamOrder::kZero, .block = block}, {});
}
Result<void> GpuTeamLeader::copy(uint32_t to, uint32_t from) {
  return order({.kind = TeamOrder::kCopy, .block = to, .from = from}, {});
}

// ---- followers ----

Result<void> follow_on_gpu(GpuRank& rank, RankSegment& segment, std::span<std::byte> board) {
  PublishedStep step;
  return segment.follow([&]() -> Result<void> {
    TeamOrder order;
    std::memcpy(&order, board.data(), sizeof order);
    if (order.kind == TeamOrder::kStep) TIE_CHECK_OK(step.read(segment, rank.model().config()));
    return rank.run(order, step.batch());
  });
}

}  // namespace tie::bones::cuda
