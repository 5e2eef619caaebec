// What a sealed pool says about itself, and the trie a runtime builds from it: each node is one block of tokens.
// Metadata comes from another process: check() verifies every count, index and relation before anything is built on it.
// Plain values, no threads. Source: spec, "System-prompt prefix cache".
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "crypto/sha256.h"

namespace tie::v1 {
class PrefixTrie;
}

namespace tie::prefix {

// Limits of a pool; the metadata fits the owner's message limit.
inline constexpr uint32_t kMaxPrompts = 128;
inline constexpr uint32_t kMaxPromptTokens = 1u << 17;
inline constexpr uint32_t kMaxTokensInAll = 1u << 20;
inline constexpr uint32_t kMaxBlocks = 1u << 16;
inline constexpr uint32_t kMaxBlockTokens = 1024;
inline constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxPoolBytes = uint64_t{1} << 40;

struct PromptEntry {
  std::string id;
  std::vector<int32_t> tokens;
  std::vector<uint32_t> blocks;  // whole blocks only: tokens.size() / block_tokens of them
};

struct TrieMetadata {
  crypto::Digest model_id{};
  crypto::Digest release_id{};
  crypto::Digest layout_id{};
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;
  std::vector<PromptEntry> prompts;
  std::vector<crypto::Digest> block_sha256;  // by block index; as many as there are blocks

  uint32_t block_count() const { return static_cast<uint32_t>(block_sha256.size()); }
  uint64_t pool_bytes() const { return block_bytes * block_count(); }
};

// Structure: limits, unique prompt ids, indices in range, every block used, the same tokens in the same blocks and
// different tokens never. kCorrupt names the rule.
Result<void> check(const TrieMetadata& metadata);

// What all ranks must agree on: everything but the blocks' contents, which differ between ranks.
crypto::Digest trie_digest(const TrieMetadata& metadata);

void to_proto(const TrieMetadata& metadata, v1::PrefixTrie& out);
// kCorrupt for digests of a wrong size or counts beyond the limits; check() is still the caller's to call.
Result<TrieMetadata> from_proto(const v1::PrefixTrie& message);

// Lays prompts out in blocks: shared beginnings share blocks. Fills `blocks` of each prompt and block_sha256 with
// zeros; identities are the caller's. kBadRequest: over the limits, empty or repeated ids.
Result<TrieMetadata> plan_blocks(std::vector<PromptEntry> prompts, uint32_t block_tokens, uint64_t block_bytes);

class PrefixTrie {
 public:
  // `metadata` has passed check(). Cost: one map insertion per block.
  explicit PrefixTrie(const TrieMetadata& metadata);

  // Block indices of the longest stored beginning of `prompt`, in order. At least one token of the prompt is left to
  // compute, since its logits are wanted. Exact token comparison, no hashes. Cost: one lookup per matched block.
  std::vector<uint32_t> match(std::span<const int32_t> prompt) const;
  uint32_t block_tokens() const { return block_tokens_; }

 private:
  struct Node {
    std::map<std::vector<int32_t>, uint32_t> children;  // block of tokens → node
    uint32_t block = 0;
  };
  uint32_t block_tokens_;
  std::vector<Node> nodes_;  // 0 is the root
};

}  // namespace tie::prefix
