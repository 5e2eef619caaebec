#include "inference/hosts/server/prefix_cache.h"

#include <algorithm>

#include "cache/prefix/pool_writer.h"
#include "inference/engine/prefix_warmup.h"
#include "os/log.h"

namespace tie::runtime_host {
namespace {

constexpr int64_t kCallMs = 10'000;
constexpr int64_t kSealMs = 120'000;  // the owner hashes the whole pool

Deadline soon() {
  return Deadline::in_ms(kCallMs);
}

Result<prefix::OwnerLink> link_of(const PrefixContext& context, uint32_t rank = 0) {
  return prefix::OwnerLink::connect(context.owner_socket, context.model, rank, soon());
}

Result<prefix::RestoredPool> attach(const PrefixContext& context, uint32_t rank) {
  TIE_TRY(auto link, link_of(context, rank));
  TIE_TRY(auto attached, link.attach(soon()));
  return prefix::RestoredPool::restore(std::move(attached.fd), std::move(attached.metadata),
                                       {context.model_id, context.release_id, context.layout_id(),
                                        context.layout.block_tokens, context.shards.part_bytes()});
}

// The pools of all ranks, or of none.
Result<std::vector<prefix::RestoredPool>> attach_all(const PrefixContext& context) {
  std::vector<prefix::RestoredPool> pools;
  std::vector<crypto::Digest> digests;
  for (uint32_t rank = 0; rank < context.shards.count(); ++rank) {
    TIE_TRY(prefix::RestoredPool pool, attach(context, rank));
    digests.push_back(pool.digest());
    pools.push_back(std::move(pool));
  }
  TIE_CHECK_OK(prefix::require_agreement(digests));
  return pools;
}

// The pools of all ranks while they are filled.
class PoolWriters {
 public:
  static Result<PoolWriters> prepare(const PrefixContext& context, const prefix::TrieMetadata& plan) {
    PoolWriters out;
    out.part_.resize(context.shards.part_bytes());
    for (uint32_t rank = 0; rank < context.shards.count(); ++rank) {
      TIE_TRY(auto link, link_of(context, rank));
      TIE_TRY(auto fd, link.prepare(plan.block_bytes, plan.block_count(), plan.layout_id, soon()));
      TIE_TRY(auto writer, prefix::PoolWriter::create(std::move(fd), plan));
      out.writers_.push_back(std::move(writer));
    }
    return out;
  }
  Result<void> write(const KvShards& shards, uint32_t index, std::span<const std::byte> block) {
    for (uint32_t rank = 0; rank < shards.count(); ++rank) {
      shards.cut(block, rank, part_);
      TIE_CHECK_OK(writers_[rank].write_block(index, part_));
    }
    return {};
  }
  Result<void> seal(const PrefixContext& context) {
    for (uint32_t rank = 0; rank < writers_.size(); ++rank) {
      TIE_TRY(auto metadata, writers_[rank].finish());
      TIE_TRY(auto link, link_of(context, rank));
      TIE_CHECK_OK(link.seal(metadata, Deadline::in_ms(kSealMs)));
    }
    return {};
  }

 private:
  std::vector<prefix::PoolWriter> writers_;
  std::vector<std::byte> part_;
};

}  // namespace

Result<void> SealedPrefix::read(uint32_t block, std::span<std::byte> out) {
  for (uint32_t rank = 0; rank < shards_.count(); ++rank) {
    auto done = pools_[rank].read_block(block, part_);
    if (!done) {
      corrupt_ = true;
      std::ranges::fill(out, std::byte{0});
      return done;
    }
    shards_.join(part_, rank, out);
  }
  return {};
}

crypto::Digest PrefixContext::layout_id() const {
  std::string all = layout.layout_id_input() + kv_order;
  if (!grid.alone())
    all += " over " + std::to_string(grid.tensor_ranks) + " x " + std::to_string(grid.stages) + " ranks";
  return crypto::sha256(as_bytes(all));
}

Result<PrefixStart> start_prefix(const PrefixContext& context) {
  TIE_TRY(auto link, link_of(context));
  auto prompts = link.prompts(soon());
  if (!prompts && prompts.error().code == Code::kFailedPrecondition) return PrefixStart{};
  if (!prompts) return std::unexpected(std::move(prompts.error()));
  auto fills_a_block = [&](const prefix::PromptEntry& prompt) {
    return prompt.tokens.size() >= context.layout.block_tokens;
  };
  PrefixStart out;
  out.prompts = std::move(*prompts);
  if (std::ranges::none_of(out.prompts, fills_a_block)) return out;  // none, or all too short to be worth a pool
  auto pools = attach_all(context);
  if (pools) {
    out.state = PrefixState::kRestored;
    out.source = std::make_unique<SealedPrefix>(std::move(*pools), context.shards);
    return out;
  }
  if (pools.error().code != Code::kNotReady) {
    TIE_LOG("afm-runtime", "the prefix pool is refused with {}", pools.error().code);
    TIE_CHECK_OK(link.reset(soon()));
  }
  out.state = PrefixState::kCold;
  return out;
}

Result<void> warm_prefix(const PrefixContext& context, engine::ForwardModel& model, uint32_t max_rows) {
  TIE_TRY(auto link, link_of(context));
  TIE_TRY(auto prompts, link.prompts(soon()));
  TIE_TRY(auto plan,
          prefix::plan_blocks(std::move(prompts), context.layout.block_tokens, context.layout.block_bytes()));
  plan.model_id = context.model_id;
  plan.release_id = context.release_id;
  plan.layout_id = context.layout_id();
  prefix::TrieMetadata of_each = plan;
  of_each.block_bytes = context.shards.part_bytes();
  TIE_TRY(auto writers, PoolWriters::prepare(context, of_each));
  auto write = [&](uint32_t index, std::span<const std::byte> block) {
    return writers.write(context.shards, index, block);
  };
  TIE_CHECK_OK(engine::compute_prefix_blocks(model, context.layout, plan, max_rows, write));
  return writers.seal(context);
}

void discard_prefix(const PrefixContext& context) {
  auto link = link_of(context);
  if (link) (void)link->reset(soon());
}

}  // namespace tie::runtime_host
