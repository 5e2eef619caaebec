#include "cache/prefix/prefix_trie.h"

#include <algorithm>
#include <set>

#include "owner.pb.h"

namespace tie::prefix {
namespace {

constexpr std::string_view kDigestLabel = "tie prefix trie v1";
constexpr size_t kMaxPromptIdBytes = 128;

Result<void> check_limits(const TrieMetadata& m) {
  if (m.block_tokens == 0 || m.block_tokens > kMaxBlockTokens)
    return fail(Code::kCorrupt, "tokens per block are out of range");
  if (m.block_bytes == 0 || m.block_bytes > kMaxBlockBytes)
    return fail(Code::kCorrupt, "bytes per block are out of range");
  if (m.block_count() == 0 || m.block_count() > kMaxBlocks)
    return fail(Code::kCorrupt, "the number of blocks is out of range");
  if (m.pool_bytes() > kMaxPoolBytes) return fail(Code::kCorrupt, "the pool is too large");
  if (m.prompts.empty() || m.prompts.size() > kMaxPrompts)
    return fail(Code::kCorrupt, "the number of prompts is out of range");
  size_t tokens = 0;
  std::set<std::string_view> ids;
  for (const PromptEntry& prompt : m.prompts) {
    if (prompt.id.empty() || prompt.id.size() > kMaxPromptIdBytes || !ids.insert(prompt.id).second)
      return fail(Code::kCorrupt, "a prompt id is empty, too long or there twice");
    if (prompt.tokens.size() > kMaxPromptTokens) return fail(Code::kCorrupt, "a prompt is too long");
    tokens += prompt.tokens.size();
  }
  if (tokens > kMaxTokensInAll) return fail(Code::kCorrupt, "the prompts are too long together");
  return {};
}

// A block stands for a whole beginning: its own tokens after the block before it.
using Beginning = std::pair<uint32_t, std::vector<int32_t>>;  // block before (or kRoot), tokens
constexpr uint32_t kRoot = UINT32_MAX;

std::vector<int32_t> block_of(std::span<const int32_t> tokens, size_t index, uint32_t block_tokens) {
  auto part = tokens.subspan(index * block_tokens, block_tokens);
  return {part.begin(), part.end()};
}

class Hasher {
 public:
  void u64(uint64_t value) {
    Bytes bytes;
    append_u64_be(bytes, value);
    hash_.update(bytes);
  }
  void bytes(ByteView view) {
    u64(view.size());
    hash_.update(view);
  }
  crypto::Digest finish() { return hash_.finish(); }

 private:
  crypto::Sha256 hash_;
};

}  // namespace

Result<void> check(const TrieMetadata& m) {
  TIE_CHECK_OK(check_limits(m));
  std::map<Beginning, uint32_t> block_of_beginning;
  std::vector<const Beginning*> beginning_of_block(m.block_count(), nullptr);
  for (const PromptEntry& prompt : m.prompts) {
    if (prompt.blocks.size() != prompt.tokens.size() / m.block_tokens)
      return fail(Code::kCorrupt, "prompt " + prompt.id + " has not one block for each whole run of tokens");
    uint32_t before = kRoot;
    for (size_t i = 0; i < prompt.blocks.size(); ++i) {
      uint32_t block = prompt.blocks[i];
      if (block >= m.block_count())
        return fail(Code::kCorrupt, "a block index of prompt " + prompt.id + " is out of range");
      auto [at, fresh] = block_of_beginning.try_emplace({before, block_of(prompt.tokens, i, m.block_tokens)}, block);
      if (at->second != block) return fail(Code::kCorrupt, "the same tokens lie in two blocks");
      if (fresh && beginning_of_block[block] != nullptr)
        return fail(Code::kCorrupt, "one block stands for different tokens");
      beginning_of_block[block] = &at->first;
      before = block;
    }
  }
  for (const Beginning* used : beginning_of_block)
    if (used == nullptr) return fail(Code::kCorrupt, "a block belongs to no prompt");
  return {};
}

crypto::Digest trie_digest(const TrieMetadata& m) {
  Hasher h;
  h.bytes(as_bytes(kDigestLabel));
  for (const crypto::Digest* id : {&m.model_id, &m.release_id, &m.layout_id}) h.bytes(*id);
  h.u64(m.block_tokens);
  h.u64(m.block_bytes);
  h.u64(m.block_count());
  h.u64(m.prompts.size());
  for (const PromptEntry& prompt : m.prompts) {
    h.bytes(as_bytes(prompt.id));
    h.u64(prompt.tokens.size());
    for (int32_t token : prompt.tokens) h.u64(static_cast<uint64_t>(static_cast<int64_t>(token)));
    h.u64(prompt.blocks.size());
    for (uint32_t block : prompt.blocks) h.u64(block);
  }
  return h.finish();
}

void to_proto(const TrieMetadata& m, v1::PrefixTrie& out) {
  auto text = [](const crypto::Digest& d) { return to_string(ByteView(d)); };
  out.set_model_id(text(m.model_id));
  out.set_release_id(text(m.release_id));
  out.set_layout_id(text(m.layout_id));
  out.set_block_tokens(m.block_tokens);
  out.set_block_bytes(m.block_bytes);
  for (const PromptEntry& prompt : m.prompts) {
    v1::PrefixPrompt& p = *out.add_prompts();
    p.set_prompt_id(prompt.id);
    p.mutable_token_ids()->Add(prompt.tokens.begin(), prompt.tokens.end());
    p.mutable_blocks()->Add(prompt.blocks.begin(), prompt.blocks.end());
  }
  for (const crypto::Digest& digest : m.block_sha256) out.add_block_sha256(text(digest));
}

Result<TrieMetadata> from_proto(const v1::PrefixTrie& message) {
  TrieMetadata m;
  TIE_TRY(m.model_id, crypto::digest_from(as_bytes(message.model_id()), "model id"));
  TIE_TRY(m.release_id, crypto::digest_from(as_bytes(message.release_id()), "release id"));
  TIE_TRY(m.layout_id, crypto::digest_from(as_bytes(message.layout_id()), "layout id"));
  m.block_tokens = message.block_tokens();
  m.block_bytes = message.block_bytes();
  if (message.prompts_size() > static_cast<int>(kMaxPrompts) ||
      message.block_sha256_size() > static_cast<int>(kMaxBlocks))
    return fail(Code::kCorrupt, "the metadata of the pool is over its limits");
  for (const v1::PrefixPrompt& p : message.prompts())
    m.prompts.push_back(
        {p.prompt_id(), {p.token_ids().begin(), p.token_ids().end()}, {p.blocks().begin(), p.blocks().end()}});
  for (const std::string& digest : message.block_sha256()) {
    TIE_TRY(m.block_sha256.emplace_back(), crypto::digest_from(as_bytes(digest), "block digest"));
  }
  return m;
}

Result<TrieMetadata> plan_blocks(std::vector<PromptEntry> prompts, uint32_t block_tokens, uint64_t block_bytes) {
  TrieMetadata m;
  m.block_tokens = block_tokens;
  m.block_bytes = block_bytes;
  if (block_tokens == 0 || block_tokens > kMaxBlockTokens || prompts.size() > kMaxPrompts)
    return fail(Code::kBadRequest, "prompts or blocks are over the limits");
  std::map<Beginning, uint32_t> known;
  for (PromptEntry& prompt : prompts) {
    prompt.blocks.clear();
    if (prompt.tokens.size() > kMaxPromptTokens) return fail(Code::kBadRequest, "prompt " + prompt.id + " is too long");
    uint32_t before = kRoot;
    for (size_t i = 0; i < prompt.tokens.size() / block_tokens; ++i) {
      before =
          known.try_emplace({before, block_of(prompt.tokens, i, block_tokens)}, static_cast<uint32_t>(known.size()))
              .first->second;
      prompt.blocks.push_back(before);
    }
  }
  m.prompts = std::move(prompts);
  m.block_sha256.resize(known.size());
  auto valid = check(m);
  if (!valid) return fail(Code::kBadRequest, valid.error().message);
  return m;
}

PrefixTrie::PrefixTrie(const TrieMetadata& metadata) : block_tokens_(metadata.block_tokens), nodes_(1) {
  for (const PromptEntry& prompt : metadata.prompts) {
    uint32_t at = 0;
    for (size_t i = 0; i < prompt.blocks.size(); ++i) {
      auto [child, fresh] = nodes_[at].children.try_emplace(block_of(prompt.tokens, i, block_tokens_),
                                                            static_cast<uint32_t>(nodes_.size()));
      uint32_t next = child->second;
      if (fresh) nodes_.push_back({{}, prompt.blocks[i]});
      at = next;
    }
  }
}

std::vector<uint32_t> PrefixTrie::match(std::span<const int32_t> prompt) const {
  std::vector<uint32_t> out;
  uint32_t at = 0;
  for (size_t i = 0; (i + 1) * block_tokens_ < prompt.size(); ++i) {
    auto child = nodes_[at].children.find(block_of(prompt, i, block_tokens_));
    if (child == nodes_[at].children.end()) break;
    at = child->second;
    out.push_back(nodes_[at].block);
  }
  return out;
}

}  // namespace tie::prefix
