#include "text/vocab_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "crypto/sha256.h"

namespace tie::text {
namespace {

using image::Header;
using image::kNone;

// Longest added token that the scanner follows; bounds the walk through a hostile trie that has a cycle.
constexpr uint32_t kMaxAddedTokenBytes = 1024;

template <typename T>
Result<std::span<const T>> section_of(ByteView image, image::Section which, const char* name) {
  const auto& header = *reinterpret_cast<const Header*>(image.data());
  const image::SectionRef ref = header.sections[which];
  if (ref.offset % 16 != 0 || ref.offset > image.size() || ref.bytes > image.size() - ref.offset ||
      ref.bytes % sizeof(T) != 0)
    return fail(Code::kCorrupt, fmt::format("vocabulary image: section {} does not lie inside the image", name));
  return std::span<const T>(reinterpret_cast<const T*>(image.data() + ref.offset), ref.bytes / sizeof(T));
}

bool is_table_size(size_t n) {
  return n == 0 || std::has_single_bit(n);
}

}  // namespace

Result<Vocab> Vocab::open(ByteView image) {
  if (image.size() < sizeof(Header) || reinterpret_cast<uintptr_t>(image.data()) % 16 != 0)
    return fail(Code::kCorrupt, "vocabulary image: too short or not aligned");
  Vocab v;
  v.image_ = image;
  const Header& h = v.header();
  if (std::memcmp(h.magic, image::kMagic, sizeof h.magic) != 0)
    return fail(Code::kCorrupt, "not a vocabulary image (wrong magic)");
  if (h.version != image::kVersion)
    return fail(Code::kCorrupt, fmt::format("vocabulary image of version {}, this program reads {}: compile it anew",
                                            h.version, image::kVersion));
  if (h.total_bytes != image.size()) return fail(Code::kCorrupt, "vocabulary image: cut or padded");
  if (h.model < image::kByteLevelBpe || h.model > image::kUnigram)
    return fail(Code::kCorrupt, "vocabulary image: unknown model");
  TIE_TRY(v.offsets_, section_of<uint32_t>(image, image::kOffsets, "offsets"));
  TIE_TRY(v.bytes_, section_of<uint8_t>(image, image::kTokenBytes, "token bytes"));
  TIE_TRY(v.attributes_, section_of<uint8_t>(image, image::kAttributes, "attributes"));
  if (h.model == image::kUnigram) {
    TIE_TRY(v.precise_scores_, section_of<double>(image, image::kScores, "scores"));
  } else {
    TIE_TRY(v.scores_, section_of<float>(image, image::kScores, "scores"));
  }
  TIE_TRY(v.merges_, section_of<image::MergeSlot>(image, image::kMerges, "merges"));
  TIE_TRY(v.hash_, section_of<image::HashSlot>(image, image::kTokenHash, "token hash"));
  TIE_TRY(v.trie_nodes_, section_of<image::TrieNode>(image, image::kTrieNodes, "trie nodes"));
  TIE_TRY(v.trie_edges_, section_of<image::TrieEdge>(image, image::kTrieEdges, "trie edges"));
  TIE_TRY(v.eog_, section_of<uint32_t>(image, image::kEndOfGeneration, "end of generation"));
  TIE_TRY(v.steps_, section_of<image::Step>(image, image::kSteps, "steps"));
  TIE_TRY(v.strings_, section_of<uint8_t>(image, image::kStrings, "strings"));
  if (h.n_tokens == 0 || h.n_tokens > h.n_symbols || v.offsets_.size() != size_t{h.n_symbols} + 1 ||
      v.attributes_.size() != h.n_tokens || (!v.scores_.empty() && v.scores_.size() != h.n_tokens) ||
      (!v.precise_scores_.empty() && v.precise_scores_.size() != h.n_tokens) || !is_table_size(v.merges_.size()) ||
      !is_table_size(v.hash_.size()) || v.trie_nodes_.empty() || v.steps_.size() > 16)
    return fail(Code::kCorrupt, "vocabulary image: section sizes disagree");
  return v;
}

Result<void> Vocab::verify_digest() const {
  Header head = header();
  std::memset(head.digest, 0, sizeof head.digest);
  const ByteView head_bytes(reinterpret_cast<const uint8_t*>(&head), sizeof head);
  const auto digest = crypto::sha256({head_bytes, image_.subspan(sizeof head)});
  if (std::memcmp(digest.data(), header().digest, digest.size()) != 0)
    return fail(Code::kCorrupt, "vocabulary image: digest does not match");
  return {};
}

bool Vocab::is_end_of_generation(TokenId id) const {
  return std::binary_search(eog_.begin(), eog_.end(), static_cast<uint32_t>(id));
}

uint8_t Vocab::attributes(TokenId id) const {
  const auto index = static_cast<uint32_t>(id);
  return index < attributes_.size() ? attributes_[index] : 0;
}

ByteView Vocab::symbol_bytes(uint32_t symbol) const {
  if (symbol >= header().n_symbols) return {};
  const uint32_t begin = offsets_[symbol], end = offsets_[symbol + 1];
  if (begin > end || end > bytes_.size()) return {};
  return bytes_.subspan(begin, end - begin);
}

ByteView Vocab::token_bytes(TokenId id) const {
  return static_cast<uint32_t>(id) < size() ? symbol_bytes(static_cast<uint32_t>(id)) : ByteView{};
}

double Vocab::score(TokenId id) const {
  const auto index = static_cast<uint32_t>(id);
  if (index < precise_scores_.size()) return precise_scores_[index];
  return index < scores_.size() ? scores_[index] : 0.0;
}

std::optional<TokenId> Vocab::find(ByteView bytes) const {
  if (bytes.empty() || bytes.size() > header().max_token_bytes || hash_.empty()) return std::nullopt;
  const uint64_t hash = image::hash_bytes(bytes.data(), bytes.size());
  const auto tag = static_cast<uint32_t>(hash >> 32);
  const size_t mask = hash_.size() - 1;
  size_t at = hash & mask;
  for (size_t probes = 0; probes < hash_.size(); ++probes, at = (at + 1) & mask) {
    const image::HashSlot slot = hash_[at];
    if (slot.id == kNone) return std::nullopt;
    if (slot.tag != tag) continue;
    const ByteView candidate = token_bytes(static_cast<TokenId>(slot.id));
    if (candidate.size() == bytes.size() && std::memcmp(candidate.data(), bytes.data(), bytes.size()) == 0)
      return static_cast<TokenId>(slot.id);
  }
  return std::nullopt;
}

std::optional<TokenId> Vocab::find_any(std::string_view text) const {
  const auto added = match_added(text, 0xff);
  if (added && added->length == text.size()) return static_cast<TokenId>(added->id);
  return find(as_bytes(text));
}

std::optional<Vocab::Merge> Vocab::merge(uint32_t left, uint32_t right) const {
  if (merges_.empty()) return std::nullopt;
  const size_t mask = merges_.size() - 1;
  size_t at = image::hash_pair(left, right) & mask;
  for (size_t probes = 0; probes < merges_.size(); ++probes, at = (at + 1) & mask) {
    const image::MergeSlot& slot = merges_[at];
    if (slot.left == left && slot.right == right) return Merge{slot.rank, slot.result};
    if (slot.left == kNone) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<uint32_t> Vocab::step(uint32_t node, uint8_t byte) const {
  if (node >= trie_nodes_.size()) return std::nullopt;
  const image::TrieNode& here = trie_nodes_[node];
  if (here.first_edge > trie_edges_.size() || here.n_edges > trie_edges_.size() - here.first_edge) return std::nullopt;
  const auto edges = trie_edges_.subspan(here.first_edge, here.n_edges);
  const auto found = std::lower_bound(edges.begin(), edges.end(), byte,
                                      [](const image::TrieEdge& edge, uint8_t b) { return edge.byte < b; });
  if (found == edges.end() || found->byte != byte || found->node >= trie_nodes_.size()) return std::nullopt;
  return found->node;
}

bool Vocab::ends_control(uint32_t node) const {
  if (node >= trie_nodes_.size()) return false;
  const uint32_t token = trie_nodes_[node].token;
  return token < size() && is_control(static_cast<TokenId>(token));
}

std::optional<Vocab::AddedMatch> Vocab::match_added(std::string_view text, uint8_t wanted) const {
  std::optional<AddedMatch> best;
  uint32_t node = 0;
  const size_t limit = std::min<size_t>(text.size(), kMaxAddedTokenBytes);
  for (size_t at = 0; at < limit; ++at) {
    const auto next = step(node, static_cast<uint8_t>(text[at]));
    if (!next) return best;
    node = *next;
    const uint32_t token = trie_nodes_[node].token;
    if (token < size() && (attributes_[token] & wanted)) best = AddedMatch{token, static_cast<uint32_t>(at + 1)};
  }
  return best;
}

std::string_view Vocab::string(image::StringRef ref) const {
  if (ref.offset > strings_.size() || ref.bytes > strings_.size() - ref.offset) return {};
  return as_text(strings_.subspan(ref.offset, ref.bytes));
}

}  // namespace tie::text
