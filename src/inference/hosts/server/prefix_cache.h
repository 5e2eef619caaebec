// The runtime's part in the life of the system-prompt prefix cache: restore it from the owner at start, or warm it when
// told to; serve its blocks to the engine. Source: cache/prefix/README.md. The warming instance seals and ends; only a
// fresh one serves. A model over several ranks has a pool for each, with that rank's part of every block (kv_shards.h);
// they count only together, and only while they agree.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cache/prefix/owner_link.h"
#include "cache/prefix/restored_pool.h"
#include "inference/engine/forward_model.h"
#include "inference/engine/prefix_blocks.h"
#include "inference/hosts/server/kv_shards.h"

namespace tie::runtime_host {

// Blocks out of the sealed pools, each part checked as it is read. read() on the engine's thread; corrupt() any.
class SealedPrefix final : public engine::PrefixSource {
 public:
  // One pool for each of the shards' ranks, all of which agree.
  SealedPrefix(std::vector<prefix::RestoredPool> pools, KvShards shards)
      : pools_(std::move(pools)), shards_(std::move(shards)), part_(shards_.part_bytes()) {}
  uint32_t block_count() const override { return pools_[0].metadata().block_count(); }
  std::vector<uint32_t> match(std::span<const int32_t> prompt) const override { return pools_[0].trie().match(prompt); }
  Result<void> read(uint32_t block, std::span<std::byte> out) override;
  bool corrupt() const { return corrupt_; }
  size_t prompt_count() const { return pools_[0].metadata().prompts.size(); }

 private:
  std::vector<prefix::RestoredPool> pools_;
  KvShards shards_;
  std::vector<std::byte> part_;
  std::atomic<bool> corrupt_{false};
};

struct PrefixContext {
  std::string owner_socket, model;
  crypto::Digest model_id{}, release_id{};
  bones::KvLayout layout;
  std::string kv_order = {};  // ForwardModel::kv_order
  bones::RankPlace grid = {};
  KvShards shards = {};

  // Blocks of another grid are not taken: pools are cut otherwise, and sums have rounded otherwise.
  crypto::Digest layout_id() const;
};

enum class PrefixState { kNone, kRestored, kCold };
struct PrefixStart {
  PrefixState state = PrefixState::kNone;    // kNone: this model has no system prompts
  std::unique_ptr<SealedPrefix> source;      // when restored
  std::vector<prefix::PromptEntry> prompts;  // this model's, however short
};

// Asks the owner. What it holds but does not fit this runtime is reset there, and the state is cold. Errors: the owner
// does not answer.
Result<PrefixStart> start_prefix(const PrefixContext& context);
// Computes, writes, seals. Errors: those of the owner and the model; the owner holds nothing half then.
Result<void> warm_prefix(const PrefixContext& context, engine::ForwardModel& model, uint32_t max_rows);
// The pool turned out bad while it was served: the owner forgets it.
void discard_prefix(const PrefixContext& context);

}  // namespace tie::runtime_host
