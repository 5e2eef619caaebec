// Lays a VocabSource out as an image.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "crypto/sha256.h"
#include "text/vocab_source.h"

namespace tie::text {
namespace {

using image::HashSlot;
using image::Header;
using image::kNone;
using image::MergeSlot;
using image::TrieEdge;
using image::TrieNode;

struct BuildNode {
  std::map<uint8_t, uint32_t> edges;
  uint32_t token = kNone;
};

class ImageBuilder {
 public:
  explicit ImageBuilder(const VocabSource& source) : source_(source) {}

  Result<Bytes> build() {
    TIE_CHECK_OK(check_limits());
    for (const SourceToken& token : source_.tokens) symbols_.push_back(token.bytes);
    index_tokens();
    assign_byte_tokens();
    TIE_CHECK_OK(resolve_merges());
    build_hash();
    build_trie();
    find_word_boundaries();
    write_sections();
    return finish();
  }

 private:
  Result<void> check_limits() const {
    if (source_.tokens.empty()) return fail(Code::kBadRequest, "the vocabulary has no tokens");
    if (source_.tokens.size() > kMaxVocabTokens)
      return fail(Code::kTooLarge, fmt::format("{} tokens, the limit is {}", source_.tokens.size(), kMaxVocabTokens));
    if (source_.merges.size() > kMaxVocabMerges)
      return fail(Code::kTooLarge, fmt::format("{} merges, the limit is {}", source_.merges.size(), kMaxVocabMerges));
    for (size_t id = 0; id < source_.tokens.size(); ++id)
      if (source_.tokens[id].bytes.size() > kMaxTokenBytes)
        return fail(Code::kTooLarge, fmt::format("token {} has {} bytes", id, source_.tokens[id].bytes.size()));
    return {};
  }

  static bool is_ordinary(const SourceToken& token) {
    return token.merged && !token.bytes.empty() &&
           !(token.attributes & (image::kControl | image::kUnknown | image::kByte | image::kUnused));
  }

  void index_tokens() {
    by_bytes_.reserve(source_.tokens.size() * 2);
    for (uint32_t id = 0; id < source_.tokens.size(); ++id)
      if (is_ordinary(source_.tokens[id])) by_bytes_.emplace(source_.tokens[id].bytes, id);
  }

  uint32_t symbol_of(const std::string& bytes) {
    auto [found, inserted] = by_bytes_.try_emplace(bytes, static_cast<uint32_t>(symbols_.size()));
    if (inserted) symbols_.push_back(bytes);
    return found->second;
  }

  void assign_byte_tokens() {
    std::fill(std::begin(header_.byte_tokens), std::end(header_.byte_tokens), kNone);
    if (source_.model == image::kByteLevelBpe) {
      for (uint32_t byte = 0; byte < 256; ++byte)
        header_.byte_tokens[byte] = symbol_of(std::string(1, static_cast<char>(byte)));
      return;
    }
    for (uint32_t id = 0; id < source_.tokens.size(); ++id) {
      const SourceToken& token = source_.tokens[id];
      if ((token.attributes & image::kByte) && token.bytes.size() == 1)
        header_.byte_tokens[static_cast<uint8_t>(token.bytes[0])] = id;
    }
  }

  Result<void> resolve_merges() {
    if (source_.merges.empty()) return {};
    const size_t slots = std::bit_ceil(source_.merges.size() + source_.merges.size() / 3 + 1);
    merges_.assign(slots, MergeSlot{kNone, kNone, kNone, kNone});
    for (uint32_t rank = 0; rank < source_.merges.size(); ++rank) {
      const auto& [left_text, right_text] = source_.merges[rank];
      if (left_text.size() + right_text.size() > kMaxTokenBytes)
        return fail(Code::kTooLarge, fmt::format("merge {} is too long", rank));
      const uint32_t left = symbol_of(left_text), right = symbol_of(right_text),
                     result = symbol_of(left_text + right_text);
      if (symbols_.size() > 2 * size_t{kMaxVocabTokens})
        return fail(Code::kTooLarge, "too many intermediate merge results");
      size_t at = image::hash_pair(left, right) & (slots - 1);
      while (merges_[at].left != kNone && !(merges_[at].left == left && merges_[at].right == right))
        at = (at + 1) & (slots - 1);
      if (merges_[at].left == kNone) merges_[at] = {left, right, rank, result};  // a repeated pair keeps its first rank
    }
    return {};
  }

  void build_hash() {
    const size_t slots = std::bit_ceil(source_.tokens.size() + source_.tokens.size() / 3 + 1);
    hash_.assign(slots, HashSlot{kNone, 0});
    for (uint32_t id = 0; id < source_.tokens.size(); ++id) {
      const SourceToken& token = source_.tokens[id];
      if (!is_ordinary(token) || by_bytes_.at(token.bytes) != id) continue;
      const uint64_t hash = image::hash_bytes(reinterpret_cast<const uint8_t*>(token.bytes.data()), token.bytes.size());
      size_t at = hash & (slots - 1);
      while (hash_[at].id != kNone) at = (at + 1) & (slots - 1);
      hash_[at] = {id, static_cast<uint32_t>(hash >> 32)};
      header_.max_token_bytes = std::max(header_.max_token_bytes, static_cast<uint32_t>(token.bytes.size()));
    }
  }

  // Bytes that stand right before a space inside some symbol. Behind any other byte a space begins a word that no merge
  // reaches over.
  void find_word_boundaries() {
    if (!by_bytes_.contains(" "))
      std::fill(std::begin(header_.joins_before_space), std::end(header_.joins_before_space), uint8_t{0xff});
    for (const std::string& symbol : symbols_) {
      for (size_t at = symbol.find(' ', 1); at != std::string::npos; at = symbol.find(' ', at + 1)) {
        const auto before = static_cast<uint8_t>(symbol[at - 1]);
        if (before != ' ') header_.joins_before_space[before >> 3] |= static_cast<uint8_t>(1u << (before & 7));
      }
    }
  }

  void build_trie() {
    std::vector<BuildNode> nodes(1);
    for (uint32_t id = 0; id < source_.tokens.size(); ++id) {
      const SourceToken& token = source_.tokens[id];
      const std::string& text = token.literal.empty() ? token.bytes : token.literal;
      if (!token.added || text.empty()) continue;
      uint32_t node = 0;
      for (char c : text) {
        const auto byte = static_cast<uint8_t>(c);
        auto [found, inserted] = nodes[node].edges.try_emplace(byte, static_cast<uint32_t>(nodes.size()));
        const uint32_t next = found->second;
        if (inserted) nodes.emplace_back();
        node = next;
      }
      if (nodes[node].token == kNone) nodes[node].token = id;
      const auto first = static_cast<uint8_t>(text[0]);
      header_.added_first_bytes[first >> 3] |= static_cast<uint8_t>(1u << (first & 7));
    }
    for (const BuildNode& node : nodes) {
      trie_nodes_.push_back(
          {static_cast<uint32_t>(trie_edges_.size()), static_cast<uint32_t>(node.edges.size()), node.token});
      for (const auto& [byte, next] : node.edges) trie_edges_.push_back({byte, next});
    }
  }

  template <typename T>
  void section(image::Section which, const std::vector<T>& items) {
    out_.resize((out_.size() + 15) / 16 * 16);
    header_.sections[which] = {out_.size(), items.size() * sizeof(T)};
    const auto* p = reinterpret_cast<const uint8_t*>(items.data());
    out_.insert(out_.end(), p, p + items.size() * sizeof(T));
  }

  void write_sections() {
    out_.assign(sizeof(Header), 0);
    std::vector<uint32_t> offsets{0};
    std::vector<char> bytes;
    for (const std::string& symbol : symbols_) {
      bytes.insert(bytes.end(), symbol.begin(), symbol.end());
      offsets.push_back(static_cast<uint32_t>(bytes.size()));
    }
    std::vector<uint8_t> attributes;
    std::vector<float> scores;
    std::vector<double> precise_scores;
    for (const SourceToken& token : source_.tokens) {
      attributes.push_back(token.attributes);
      if (source_.model == image::kSpm) scores.push_back(static_cast<float>(token.score));
      if (source_.model == image::kUnigram) precise_scores.push_back(token.score);
    }
    std::vector<image::Step> steps;
    std::vector<char> strings;
    for (const SourceStep& step : source_.steps) {
      steps.push_back({step.kind,
                       step.behavior,
                       {static_cast<uint32_t>(strings.size()), static_cast<uint32_t>(step.pattern.size())}});
      strings.insert(strings.end(), step.pattern.begin(), step.pattern.end());
    }
    std::vector<uint32_t> eog = source_.end_of_generation;
    std::sort(eog.begin(), eog.end());
    eog.erase(std::unique(eog.begin(), eog.end()), eog.end());
    section(image::kOffsets, offsets);
    section(image::kTokenBytes, bytes);
    section(image::kAttributes, attributes);
    source_.model == image::kUnigram ? section(image::kScores, precise_scores) : section(image::kScores, scores);
    section(image::kMerges, merges_);
    section(image::kTokenHash, hash_);
    section(image::kTrieNodes, trie_nodes_);
    section(image::kTrieEdges, trie_edges_);
    section(image::kEndOfGeneration, eog);
    section(image::kSteps, steps);
    section(image::kStrings, strings);
  }

  Bytes finish() {
    std::memcpy(header_.magic, image::kMagic, sizeof header_.magic);
    header_.version = image::kVersion;
    header_.model = source_.model;
    header_.total_bytes = out_.size();
    header_.flags = source_.flags;
    header_.n_tokens = static_cast<uint32_t>(source_.tokens.size());
    header_.n_symbols = static_cast<uint32_t>(symbols_.size());
    header_.bos = source_.bos, header_.eos = source_.eos, header_.eot = source_.eot, header_.unk = source_.unk,
    header_.pad = source_.pad;
    std::memcpy(out_.data(), &header_, sizeof header_);
    const auto digest = crypto::sha256(out_);
    std::memcpy(out_.data() + offsetof(Header, digest), digest.data(), sizeof header_.digest);
    return std::move(out_);
  }

  const VocabSource& source_;
  Header header_{};
  std::vector<std::string> symbols_;
  std::unordered_map<std::string, uint32_t> by_bytes_;
  std::vector<MergeSlot> merges_;
  std::vector<HashSlot> hash_;
  std::vector<TrieNode> trie_nodes_;
  std::vector<TrieEdge> trie_edges_;
  Bytes out_;
};

}  // namespace

Result<Bytes> compile_image(const VocabSource& source) {
  return ImageBuilder(source).build();
}

}  // namespace tie::text
