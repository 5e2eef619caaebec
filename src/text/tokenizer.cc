#include "text/tokenizer.h"

#include <fmt/format.h>

#include "text/merging.h"
#include "text/pattern_splitter.h"
#include "text/split_rules.h"

namespace tie::text {
namespace {

constexpr std::string_view kMetaspaceMark = "\xE2\x96\x81";
constexpr uint8_t kSpecials = image::kControl | image::kUnknown | image::kUserDefined;

void replace_metaspace(std::string& text) {
  size_t from = text.find(kMetaspaceMark);
  if (from == std::string::npos) return;
  std::string out;
  size_t at = 0;
  for (; from != std::string::npos; from = text.find(kMetaspaceMark, at)) {
    out.append(text, at, from - at).push_back(' ');
    at = from + kMetaspaceMark.size();
  }
  out.append(text, at);
  text = std::move(out);
}

void collapse_spaces(std::string& text) {
  std::string out;
  for (char c : text)
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out.push_back(c);
  if (!out.empty() && out.back() == ' ') out.pop_back();
  text = std::move(out);
}

bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(const Vocab& v) : vocab(v) {}
  const Vocab& vocab;
  std::vector<std::pair<image::Step, PatternSplitter>> patterns;  // in the order of the kPattern steps
};

namespace {

// One call's scratch space: walks the text and appends ids.
class Encoder {
 public:
  Encoder(const Vocab& vocab, const std::vector<std::pair<image::Step, PatternSplitter>>& patterns)
      : vocab_(vocab), patterns_(patterns), merger_(vocab) {}

  // Text with added tokens of the wanted kinds in it.
  Result<void> encode(std::string_view text, uint8_t wanted) {
    size_t start = 0;
    for (size_t at = 0; at < text.size();) {
      const auto match = vocab_.starts_added(static_cast<uint8_t>(text[at]))
                             ? vocab_.match_added(text.substr(at), wanted)
                             : std::nullopt;
      if (!match) {
        ++at;
        continue;
      }
      const uint8_t attributes = vocab_.attributes(static_cast<TokenId>(match->id));
      size_t end = at;
      if (attributes & image::kLeftStrip)
        while (end > start && is_ascii_space(text[end - 1])) --end;
      TIE_CHECK_OK(encode_plain(text.substr(start, end - start)));
      push_added(static_cast<TokenId>(match->id));
      at += match->length;
      if (attributes & image::kRightStrip)
        while (at < text.size() && is_ascii_space(text[at])) ++at;
      start = at;
    }
    return encode_plain(text.substr(start));
  }

  // BOS in front of the text.
  void push_bos(TokenId id) {
    ids_.push_back(id);
    after_special_ = true;
  }
  // A token found in the text.
  void push_added(TokenId id) {
    ids_.push_back(id);
    after_special_ = true;
    first_ = false;
  }
  std::vector<TokenId>& ids() { return ids_; }

 private:
  // Text without added tokens.
  Result<void> encode_plain(std::string_view raw) {
    if (raw.empty()) return {};
    const uint32_t flags = vocab_.header().flags;
    const bool prefix =
        (flags & image::kAddSpacePrefix) && after_special_ && (first_ || !(flags & image::kPrefixFirstOnly));
    after_special_ = first_ = false;
    constexpr uint32_t kRewriting = image::kMetaspace | image::kNormalizeNfc | image::kNormalizeNfkc |
                                    image::kNormalizeNfd | image::kLowercase | image::kCollapseSpaces;
    if (!prefix && !(flags & kRewriting)) return split_and_merge(raw);
    std::string text(raw);
    if (flags & image::kNormalizeNfc) text = normalize(text, NormalForm::kNfc);
    if (flags & image::kNormalizeNfd) text = normalize(text, NormalForm::kNfd);
    if (flags & image::kNormalizeNfkc) text = normalize(text, NormalForm::kNfkc);
    if (flags & image::kLowercase) text = to_lower(text);
    if (flags & image::kMetaspace) replace_metaspace(text);
    if (flags & image::kCollapseSpaces) collapse_spaces(text);
    if (prefix && !((flags & image::kPrefixUnlessSpace) && text.starts_with(' '))) text.insert(text.begin(), ' ');
    return split_and_merge(text);
  }

  Result<void> split_and_merge(std::string_view text) {
    if (vocab_.steps().empty()) {
      merge(text);
      return {};
    }
    decode_all(text, chars_);
    pieces_.assign(1, {0, static_cast<uint32_t>(chars_.size() - 1)});
    size_t pattern = 0;
    for (const image::Step& step : vocab_.steps()) {
      next_.clear();
      const PatternSplitter* splitter =
          step.kind == kPattern && pattern < patterns_.size() ? &patterns_[pattern++].second : nullptr;
      for (const Piece& piece : pieces_) {
        if (splitter)
          TIE_CHECK_OK(splitter->split(text, chars_, piece, next_));
        else
          split_piece(static_cast<SplitKind>(step.kind), chars_, piece, next_);
      }
      std::swap(pieces_, next_);
    }
    for (const Piece& piece : pieces_) {
      const size_t begin = chars_[piece.begin].offset, end = chars_[piece.end].offset;
      merge(text.substr(begin, end - begin));
    }
    return {};
  }

  void merge(std::string_view piece) {
    // Gemma 4 keeps a run of new lines whole where a token has just that.
    const bool newline_run =
        vocab_.header().flags & image::kWholeNewlineRuns && piece.find_first_not_of('\n') == std::string_view::npos;
    if ((vocab_.header().flags & image::kIgnoreMerges) || newline_run)
      if (auto whole = vocab_.find(as_bytes(piece))) return ids_.push_back(*whole);
    if (vocab_.header().model == image::kByteLevelBpe) return merger_.byte_level(piece, ids_);
    const auto& joins = vocab_.header().joins_before_space;
    size_t start = 0;
    for (size_t at = 1; at < piece.size(); ++at) {
      const auto before = static_cast<uint8_t>(piece[at - 1]);
      if (piece[at] != ' ' || before == ' ' || (joins[before >> 3] & (1u << (before & 7)))) continue;
      merge_characters(piece.substr(start, at - start));
      start = at;
    }
    merge_characters(piece.substr(start));
  }

  void merge_characters(std::string_view word) {
    switch (vocab_.header().model) {
      case image::kCharBpe:
        return merger_.characters(word, ids_);
      case image::kSpm:
        return merger_.scored(word, ids_);
      default:
        return merger_.unigram(word, ids_);
    }
  }

  const Vocab& vocab_;
  const std::vector<std::pair<image::Step, PatternSplitter>>& patterns_;
  Merger merger_;
  std::vector<Char> chars_;
  std::vector<Piece> pieces_, next_;
  std::vector<TokenId> ids_;
  bool after_special_ = true;
  bool first_ = true;
};

}  // namespace

std::string without_breakers(std::string_view text, std::string_view breaker) {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (size_t found; (found = text.find(breaker, at)) != std::string_view::npos; at = found + breaker.size())
    out.append(text.substr(at, found - at));
  return out.append(text.substr(at));
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::create(const Vocab& vocab) {
  auto parts = std::make_unique<Parts>(vocab);
  for (const image::Step& step : vocab.steps()) {
    if (step.kind != kPattern) {
      if (!is_split_kind(step.kind))
        return fail(Code::kCorrupt, fmt::format("vocabulary image: unknown pre-tokenizer {}", step.kind));
      continue;
    }
    TIE_TRY(PatternSplitter splitter, PatternSplitter::compile(vocab.string(step.pattern), step.behavior));
    parts->patterns.emplace_back(step, std::move(splitter));
  }
  return Tokenizer(std::move(parts));
}

const Vocab& Tokenizer::vocab() const {
  return parts_->vocab;
}

Result<std::vector<TokenId>> Tokenizer::tokenize(std::string_view text, const TokenizeOptions& options) const {
  if (text.size() > kMaxTextBytes)
    return fail(Code::kTooLarge, fmt::format("text of {} bytes, the limit is {}", text.size(), kMaxTextBytes));
  const Vocab& v = vocab();
  Encoder encoder(v, parts_->patterns);
  const bool bos = options.add_special && v.add_bos() && v.bos();
  if (bos) encoder.push_bos(*v.bos());
  TIE_CHECK_OK(encoder.encode(text, options.parse_special ? kSpecials : uint8_t{image::kUserDefined}));
  auto& ids = encoder.ids();
  if (bos && ids.size() > 1 && ids[1] == ids[0] && options.parse_special) ids.erase(ids.begin());
  if (options.add_special && v.add_eos() && v.eos()) ids.push_back(*v.eos());
  return std::move(ids);
}

Result<std::vector<TokenId>> Tokenizer::tokenize_marked(std::string_view text, std::string_view breaker) const {
  if (text.size() > kMaxTextBytes)
    return fail(Code::kTooLarge, fmt::format("prompt of {} bytes, the limit is {}", text.size(), kMaxTextBytes));
  const Vocab& v = vocab();
  Encoder encoder(v, parts_->patterns);
  size_t start = 0;
  const auto flush = [&](size_t end) -> Result<void> {
    const std::string plain = without_breakers(text.substr(start, end - start), breaker);
    return encoder.encode(plain, image::kUserDefined);
  };
  for (size_t at = 0; at < text.size();) {
    const auto match =
        v.starts_added(static_cast<uint8_t>(text[at])) ? v.match_added(text.substr(at), kSpecials) : std::nullopt;
    if (!match) {
      ++at;
      continue;
    }
    const uint8_t attributes = v.attributes(static_cast<TokenId>(match->id));
    size_t end = at;
    if (attributes & image::kLeftStrip)
      while (end > start && is_ascii_space(text[end - 1])) --end;
    TIE_CHECK_OK(flush(end));
    encoder.push_added(static_cast<TokenId>(match->id));
    at += match->length;
    if (attributes & image::kRightStrip)
      while (at < text.size() && is_ascii_space(text[at])) ++at;
    start = at;
  }
  TIE_CHECK_OK(flush(text.size()));
  auto& ids = encoder.ids();
  if (v.add_bos() && v.bos() && (ids.empty() || ids.front() != *v.bos())) ids.insert(ids.begin(), *v.bos());
  return std::move(ids);
}

std::vector<TokenId> Tokenizer::control_tokens_of_marked(std::string_view text) const {
  const Vocab& v = vocab();
  std::vector<TokenId> out;
  for (size_t at = 0; at < text.size();) {
    const auto match =
        v.starts_added(static_cast<uint8_t>(text[at])) ? v.match_added(text.substr(at), kSpecials) : std::nullopt;
    if (!match) {
      ++at;
      continue;
    }
    if (v.is_control(static_cast<TokenId>(match->id))) out.push_back(static_cast<TokenId>(match->id));
    at += match->length;
  }
  return out;
}

}  // namespace tie::text
