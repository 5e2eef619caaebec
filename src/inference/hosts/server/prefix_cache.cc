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

Result<prefix::RestoredPool> attach(prefix::OwnerLink& link, const PrefixContext& context) {
  TIE_TRY(auto attached, link.attach(soon()));
  return prefix::RestoredPool::restore(std::move(attached.fd), std::move(attached.metadata),
                                       {context.model_id, context.release_id, context.layout_id(),
                                        context.layout.block_tokens, context.layout.block_bytes()});
}

}  // namespace

crypto::Digest PrefixContext::layout_id() const {
  return crypto::sha256(as_bytes(layout.layout_id_input() + kv_order));
}

Result<PrefixStart> start_prefix(const PrefixContext& context) {
  TIE_TRY(auto link, prefix::OwnerLink::connect(context.owner_socket, context.model, 0, soon()));
  auto prompts = link.prompts(soon());
  if (!prompts && prompts.error().code == Code::kFailedPrecondition) return PrefixStart{};
  if (!prompts) return std::unexpected(std::move(prompts.error()));
  auto fills_a_block = [&](const prefix::PromptEntry& prompt) {
    return prompt.tokens.size() >= context.layout.block_tokens;
  };
  if (std::ranges::none_of(*prompts, fills_a_block)) return PrefixStart{};  // none, or all too short to be worth a pool
  auto pool = attach(link, context);
  if (pool) return PrefixStart{PrefixState::kRestored, std::make_unique<SealedPrefix>(std::move(*pool))};
  if (pool.error().code != Code::kNotReady) {
    TIE_LOG("afm-runtime", "the prefix pool is refused with {}", pool.error().code);
    TIE_CHECK_OK(link.reset(soon()));
  }
  return PrefixStart{PrefixState::kCold, nullptr};
}

Result<void> warm_prefix(const PrefixContext& context, engine::ForwardModel& model, uint32_t max_rows) {
  TIE_TRY(auto link, prefix::OwnerLink::connect(context.owner_socket, context.model, 0, soon()));
  TIE_TRY(auto prompts, link.prompts(soon()));
  TIE_TRY(auto plan,
          prefix::plan_blocks(std::move(prompts), context.layout.block_tokens, context.layout.block_bytes()));
  plan.model_id = context.model_id;
  plan.release_id = context.release_id;
  plan.layout_id = context.layout_id();
  TIE_TRY(auto fd, link.prepare(plan.block_bytes, plan.block_count(), plan.layout_id, soon()));
  TIE_TRY(auto writer, prefix::PoolWriter::create(std::move(fd), plan));
  auto write = [&](uint32_t index, std::span<const std::byte> payload) { return writer.write_block(index, payload); };
  TIE_CHECK_OK(engine::compute_prefix_blocks(model, context.layout, plan, max_rows, write));
  TIE_TRY(auto metadata, writer.finish());
  return link.seal(metadata, Deadline::in_ms(kSealMs));
}

void discard_prefix(const PrefixContext& context) {
  auto link = prefix::OwnerLink::connect(context.owner_socket, context.model, 0, soon());
  if (link) (void)link->reset(soon());
}

}  // namespace tie::runtime_host
