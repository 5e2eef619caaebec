#include "text/split_rules.h"

#include <algorithm>

namespace tie::text {
namespace {

// A view of the piece being cut; positions are absolute character indexes, reads past the end give class 0.
class Run {
 public:
  Run(const std::vector<Char>& chars, uint32_t end) : chars_(chars.data()), end_(end) {}

  uint32_t end() const { return end_; }
  uint32_t code(uint32_t at) const { return at < end_ ? chars_[at].code : 0; }
  bool is(uint32_t at, uint16_t classes) const { return at < end_ && (chars_[at].classes & classes); }
  // A character that exists and has none of the classes.
  bool is_other(uint32_t at, uint16_t classes) const { return at < end_ && !(chars_[at].classes & classes); }
  uint32_t while_is(uint32_t at, uint16_t classes) const {
    while (is(at, classes)) ++at;
    return at;
  }
  uint32_t while_other(uint32_t at, uint16_t classes) const {
    while (is_other(at, classes)) ++at;
    return at;
  }
  uint32_t while_is_up_to(uint32_t at, uint16_t classes, uint32_t most) const {
    const uint32_t stop = std::min(end_, at + most);
    while (at < stop && is(at, classes)) ++at;
    return at;
  }
  template <typename Test>
  uint32_t while_code(uint32_t at, Test test) const {
    while (at < end_ && test(chars_[at].code)) ++at;
    return at;
  }

 private:
  const Char* chars_;
  uint32_t end_;
};

constexpr uint16_t kWordOrSpace = kSpace | kLetter | kNumber;

// Tries `match` (which gives the end of a match, or its argument) at each position; what matches nowhere becomes a
// piece of its own.
template <typename Match>
void split_by(Piece piece, std::vector<Piece>& out, Match match) {
  uint32_t gap = piece.begin;
  for (uint32_t at = piece.begin; at < piece.end;) {
    const uint32_t to = match(at);
    if (to <= at) {
      ++at;
      continue;
    }
    if (gap < at) out.push_back({gap, at});
    out.push_back({at, to});
    at = gap = to;
  }
  if (gap < piece.end) out.push_back({gap, piece.end});
}

uint32_t lower_ascii(uint32_t c, bool fold) {
  return fold && c >= 'A' && c <= 'Z' ? c + 32 : c;
}

// 's 't 'm 'd 're 've 'll; `fold`: in any case.
uint32_t match_contraction(const Run& r, uint32_t at, bool fold) {
  if (r.code(at) != '\'') return at;
  const uint32_t a = lower_ascii(r.code(at + 1), fold), b = lower_ascii(r.code(at + 2), fold);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
  return at;
}

// \s+(?!\S): a run of white space, without its last character when something follows. `rest`: a single one is taken too
// (|\s+).
uint32_t match_spaces(const Run& r, uint32_t at, bool rest) {
  const uint32_t to = r.while_is(at, kSpace);
  if (to == at || to == r.end()) return to;
  if (to - at > 1) return to - 1;
  return rest ? to : at;
}

// \s*[\r\n]+: up to the last new line of a run of white space.
uint32_t match_newlines(const Run& r, uint32_t at) {
  const uint32_t to = r.while_is(at, kSpace);
  for (uint32_t last = to; last > at; --last)
    if (r.is(last - 1, kNewline)) return last;
  return at;
}

uint32_t match_gpt2(const Run& r, uint32_t at) {
  if (uint32_t to = match_contraction(r, at, false); to > at) return to;
  const uint32_t word = at + (r.code(at) == ' ' ? 1 : 0);
  if (r.is(word, kLetter)) return r.while_is(word, kLetter);
  if (r.is(word, kNumber)) return r.while_is(word, kNumber);
  if (r.is_other(word, kWordOrSpace)) return r.while_other(word, kWordOrSpace);
  return match_spaces(r, at, true);
}

struct WordRule {
  bool contraction_before = false;  // its own piece, tried first
  bool contraction_after = false;   // belongs to the word before it
  bool cased = false;               // words end where case falls back
  uint16_t letters = kLetter;
  uint32_t max_digits = 3;
  bool newlines_after_punctuation = true;
  bool slash_after_punctuation = false;
  bool han_runs = false;
  bool ascii_case_only = false;
};

// What counts as the front or the back half of a cased word.
bool in_front(const Run& r, uint32_t at, const WordRule& rule) {
  if (rule.ascii_case_only) return r.is(at, kLetter) && !(r.code(at) >= 'a' && r.code(at) <= 'z');
  return r.is(at, kUpperish) && !(rule.han_runs && is_han(r.code(at)));
}
bool in_back(const Run& r, uint32_t at, const WordRule& rule) {
  if (rule.ascii_case_only) return r.is(at, kLetter) && !(r.code(at) >= 'A' && r.code(at) <= 'Z');
  return r.is(at, kLowerish) && !(rule.han_runs && is_han(r.code(at)));
}

// front* back+
uint32_t match_lower_word(const Run& r, uint32_t at, const WordRule& rule) {
  uint32_t to = at;
  while (in_front(r, to, rule)) ++to;
  if (in_back(r, to, rule)) {
    while (in_back(r, to, rule)) ++to;
    return to;
  }
  for (uint32_t last = to; last > at; --last)
    if (in_back(r, last - 1, rule)) return last;
  return at;
}

// front+ back*
uint32_t match_upper_word(const Run& r, uint32_t at, const WordRule& rule) {
  uint32_t to = at;
  while (in_front(r, to, rule)) ++to;
  if (to == at) return at;
  while (in_back(r, to, rule)) ++to;
  return to;
}

uint32_t match_cased_word(const Run& r, uint32_t at, const WordRule& rule) {
  const bool prefix = r.is_other(at, kNewline | kLetter | kNumber);
  for (auto* match : {match_lower_word, match_upper_word}) {
    uint32_t to = at;
    if (prefix) {
      to = match(r, at + 1, rule);
      if (to == at + 1) to = at;
    }
    if (to == at) to = match(r, at, rule);
    if (to > at) return rule.contraction_after ? match_contraction(r, to, true) : to;
  }
  return at;
}

uint32_t match_plain_word(const Run& r, uint32_t at, const WordRule& rule) {
  if (r.is_other(at, kNewline | kLetter | kNumber) && r.is(at + 1, rule.letters))
    return r.while_is(at + 1, rule.letters);
  return r.while_is(at, rule.letters);
}

uint32_t match_words(const Run& r, uint32_t at, const WordRule& rule) {
  if (rule.han_runs && at < r.end() && is_han(r.code(at))) return r.while_code(at, is_han);
  if (rule.contraction_before)
    if (uint32_t to = match_contraction(r, at, true); to > at) return to;
  if (uint32_t to = rule.cased ? match_cased_word(r, at, rule) : match_plain_word(r, at, rule); to > at) return to;
  if (r.is(at, kNumber)) return r.while_is_up_to(at, kNumber, rule.max_digits);
  const uint32_t start = at + (r.code(at) == ' ' ? 1 : 0);
  const uint16_t not_punctuation = kSpace | kNumber | kLetter | rule.letters;
  if (r.is_other(start, not_punctuation)) {
    uint32_t to = r.while_other(start, not_punctuation);
    if (!rule.newlines_after_punctuation) return to;
    while (r.is(to, kNewline) || (rule.slash_after_punctuation && r.code(to) == '/')) ++to;
    return to;
  }
  if (uint32_t to = match_newlines(r, at); to > at) return to;
  return match_spaces(r, at, true);
}

bool is_ascii_punctuation(uint32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
}
bool is_ascii_letter(uint32_t c) {
  return (c | 32) >= 'a' && (c | 32) <= 'z';
}

uint32_t match_deepseek3(const Run& r, uint32_t at) {
  if (at < r.end() && is_ascii_punctuation(r.code(at)) && is_ascii_letter(r.code(at + 1)))
    return r.while_code(at + 1, is_ascii_letter);
  constexpr uint16_t kWord = kLetter | kMark;
  if (r.is_other(at, kNewline | kLetter | kPunctuation | kSymbol) && r.is(at + 1, kWord))
    return r.while_is(at + 1, kWord);
  if (r.is(at, kWord)) return r.while_is(at, kWord);
  const uint32_t start = at + (r.code(at) == ' ' ? 1 : 0);
  if (r.is(start, kPunctuation | kSymbol)) return r.while_is(r.while_is(start, kPunctuation | kSymbol), kNewline);
  if (uint32_t to = match_newlines(r, at); to > at) return to;
  return match_spaces(r, at, true);
}

// \s?X+ for a run of characters that `test` accepts.
template <typename Test>
uint32_t match_after_space(const Run& r, uint32_t at, Test test) {
  if (r.is(at, kSpace) && at + 1 < r.end() && test(r.code(at + 1))) return r.while_code(at + 1, test);
  return r.while_code(at, test);
}

bool has_class(uint32_t c, uint16_t classes) {
  return char_classes(c) & classes;
}
bool is_letter(uint32_t c) {
  return has_class(c, kLetter);
}
bool is_punctuation(uint32_t c) {
  return has_class(c, kPunctuation);
}

// The letters that DeepSeek LLM's own expression lists (cased letters of the Unicode version it was made with).
// Ascending.
bool is_deepseek_cased(uint32_t c) {
  static constexpr uint32_t kRanges[][2] = {
      {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},       {0xD8, 0xF6},
      {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},     {0x295, 0x2AF},     {0x370, 0x373},
      {0x376, 0x376},     {0x377, 0x377},     {0x37B, 0x37D},     {0x37F, 0x37F},     {0x386, 0x386},
      {0x388, 0x38A},     {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},
      {0x48A, 0x52F},     {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},
      {0x1C90, 0x1CBA},   {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},
      {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},
      {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},
      {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},
      {0x1FD6, 0x1FDB},   {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},
      {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},
      {0x2126, 0x2126},   {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},
      {0x213C, 0x213F},   {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2183},   {0x2184, 0x2184},
      {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF2},   {0x2CF3, 0x2CF3},
      {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},   {0xA78B, 0xA78E},
      {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},   {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},
      {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2},
      {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
  };
  const auto* found = std::lower_bound(std::begin(kRanges), std::end(kRanges), c,
                                       [](const auto& range, uint32_t code) { return range[1] < code; });
  return found != std::end(kRanges) && (*found)[0] <= c;
}
bool is_deepseek_punctuation(uint32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x7E) || (c >= 0xFF01 && c <= 0xFF0F) ||
         (c >= 0xFF1A && c <= 0xFF5E) || (c >= 0x2018 && c <= 0x201F) || (c >= 0x3000 && c <= 0x3002);
}
bool is_deepseek_cjk(uint32_t c) {
  return (c >= 0x800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF);
}
bool is_kana_cjk(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}
bool is_asian(uint32_t c) {
  static constexpr uint32_t kRanges[][2] = {{0x4E00, 0x9FFF}, {0x3400, 0x4DBF}, {0xF900, 0xFAFF}, {0x3040, 0x30FF},
                                            {0xFF65, 0xFF9F}, {0x2F00, 0x2FDF}, {0x0E40, 0x0E7F}, {0x0E80, 0x0EFF},
                                            {0x1780, 0x17FF}, {0x1000, 0x109F}, {0xAA60, 0xAA7F}, {0xA9E0, 0xA9FF},
                                            {0xAC00, 0xD7AF}, {0x1100, 0x11FF}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range[0] && c <= range[1]; });
}
bool is_bloom_word(uint32_t c) {
  if (has_class(c, kSpace)) return false;
  static constexpr uint32_t kStops[] = {'(',    '|',    '.',    ',',    '!',    '?',    ')',
                                        0x2026, 0x3002, 0xFF0C, 0x3001, 0x0964, 0x06D4, 0x060C};
  return std::find(std::begin(kStops), std::end(kStops), c) == std::end(kStops);
}
bool is_falcon_punctuation(uint32_t c) {
  static constexpr std::string_view kExtra = "$+<=>^~|`";
  return is_punctuation(c) || (c < 0x80 && kExtra.find(static_cast<char>(c)) != std::string_view::npos);
}
bool is_default_punctuation(uint32_t c) {
  return c != '`' && is_falcon_punctuation(c);
}
bool is_hf_punctuation(uint32_t c) {
  return is_ascii_punctuation(c) || is_punctuation(c);
}
bool is_connector(uint32_t c) {
  return c == 0x203F || c == 0x2040 || c == 0x2054 || c == 0xFE33 || c == 0xFE34 || (c >= 0xFE4D && c <= 0xFE4F) ||
         c == 0xFF3F;
}
// \w: letters, marks, decimal digits, letter numbers, connectors, joiners.
bool is_word_char(uint32_t c) {
  return c == '_' || c == 0x200C || c == 0x200D || (has_class(c, kLetter | kMark) || has_class(c, kWordNumber)) ||
         is_connector(c);
}

void split_digits_from_right(const Run& r, Piece piece, std::vector<Piece>& out) {
  uint32_t end_of_run = piece.begin;
  split_by(piece, out, [&](uint32_t at) {
    if (!r.is(at, kNumber)) return at;
    if (at >= end_of_run) end_of_run = r.while_is(at, kNumber);
    const uint32_t first = (end_of_run - at) % 3;
    return at + (first == 0 ? 3 : first);
  });
}

void split_trailing_space(const Run& r, Piece piece, std::vector<Piece>& out) {
  uint32_t start = piece.end;
  while (start > piece.begin && r.is(start - 1, kSpace)) --start;
  if (start > piece.begin) out.push_back({piece.begin, start});
  if (start < piece.end) out.push_back({start, piece.end});
}

// Pieces are the runs that `match` gives; everything else is dropped.
template <typename Match>
void keep_matches(Piece piece, std::vector<Piece>& out, Match match) {
  for (uint32_t at = piece.begin; at < piece.end;) {
    const uint32_t to = match(at);
    if (to > at) out.push_back({at, to});
    at = to > at ? to : at + 1;
  }
}

void split_before_spaces(const Run& r, Piece piece, std::vector<Piece>& out) {
  uint32_t start = piece.begin;
  for (uint32_t at = piece.begin + 1; at < piece.end; ++at) {
    if (r.code(at) != ' ') continue;
    out.push_back({start, at});
    start = at;
  }
  if (start < piece.end) out.push_back({start, piece.end});
}

const WordRule* word_rule(SplitKind kind) {
  static constexpr WordRule kLlama3Rule{.contraction_before = true};
  static constexpr WordRule kQwen2Rule{.contraction_before = true, .max_digits = 1};
  static constexpr WordRule kQwen35Rule{.contraction_before = true, .letters = kLetter | kMark, .max_digits = 1};
  static constexpr WordRule kO200kRule{.contraction_after = true, .cased = true, .slash_after_punctuation = true};
  static constexpr WordRule kO200kGgufRule{
      .contraction_after = true, .cased = true, .slash_after_punctuation = true, .ascii_case_only = true};
  static constexpr WordRule kTekkenRule{.cased = true, .max_digits = 1, .slash_after_punctuation = true};
  static constexpr WordRule kTekkenGgufRule{
      .cased = true, .max_digits = 1, .slash_after_punctuation = true, .ascii_case_only = true};
  static constexpr WordRule kKimiRule{.contraction_after = true, .cased = true, .han_runs = true};
  static constexpr WordRule kSeedCoderRule{
      .contraction_before = true, .max_digits = 1, .newlines_after_punctuation = false};
  switch (kind) {
    case kLlama3:
      return &kLlama3Rule;
    case kQwen2:
    case kBailing:
      return &kQwen2Rule;
    case kQwen35:
      return &kQwen35Rule;
    case kO200k:
      return &kO200kRule;
    case kO200kGguf:
      return &kO200kGgufRule;
    case kTekken:
      return &kTekkenRule;
    case kTekkenGguf:
      return &kTekkenGgufRule;
    case kKimi:
      return &kKimiRule;
    case kSeedCoder:
      return &kSeedCoderRule;
    default:
      return nullptr;
  }
}

using CodeTest = bool (*)(uint32_t);
// Kinds of the form X+.
CodeTest run_test(SplitKind kind) {
  switch (kind) {
    case kFalconPunctuation:
      return is_falcon_punctuation;
    case kDefaultPunctuation:
      return is_default_punctuation;
    case kCjkDeepseek:
      return is_deepseek_cjk;
    case kCjkKana:
      return is_kana_cjk;
    case kCjkAsian:
      return is_asian;
    default:
      return nullptr;
  }
}
// Kinds of the form \s?X+.
CodeTest spaced_run_test(SplitKind kind) {
  switch (kind) {
    case kSpaceLetters:
      return is_letter;
    case kSpaceCased:
      return is_deepseek_cased;
    case kSpacePunctuation:
      return is_punctuation;
    case kSpaceAsciiPunctuation:
      return is_deepseek_punctuation;
    default:
      return nullptr;
  }
}

}  // namespace

bool is_split_kind(uint32_t kind) {
  return (kind >= kGpt2 && kind <= kDeepseek3) || (kind >= kDigit && kind <= kDigitsFromRight3) ||
         (kind >= kFalconPunctuation && kind <= kNewlineRuns) || (kind >= kSpaceLetters && kind <= kCjkAsian) ||
         (kind >= kMetaspaceWord && kind <= kDropSpace);
}

void split_piece(SplitKind kind, const std::vector<Char>& chars, Piece piece, std::vector<Piece>& out) {
  const Run r(chars, piece.end);
  if (const WordRule* rule = word_rule(kind))
    return split_by(piece, out, [&](uint32_t at) { return match_words(r, at, *rule); });
  if (CodeTest test = run_test(kind)) return split_by(piece, out, [&](uint32_t at) { return r.while_code(at, test); });
  if (CodeTest test = spaced_run_test(kind))
    return split_by(piece, out, [&](uint32_t at) { return match_after_space(r, at, test); });
  switch (kind) {
    case kGpt2:
      return split_by(piece, out, [&](uint32_t at) { return match_gpt2(r, at); });
    case kDeepseek3:
      return split_by(piece, out, [&](uint32_t at) { return match_deepseek3(r, at); });
    case kDigit:
      return split_by(piece, out, [&](uint32_t at) { return at + (r.is(at, kNumber) ? 1 : 0); });
    case kDigitRun:
      return split_by(piece, out, [&](uint32_t at) { return r.while_is(at, kNumber); });
    case kDigits3:
      return split_by(piece, out, [&](uint32_t at) { return r.while_is_up_to(at, kNumber, 3); });
    case kAsciiDigits3:
      return split_by(piece, out, [&](uint32_t at) {
        for (uint32_t i = at; i < at + 3; ++i)
          if (r.code(i) < '0' || r.code(i) > '9') return at;
        return at + 3;
      });
    case kDigitsFromRight3:
      return split_digits_from_right(r, piece, out);
    case kBloom:
      return split_by(piece, out, [&](uint32_t at) {
        const uint32_t start = at + (r.code(at) == ' ' ? 1 : 0);
        const uint32_t to = r.while_code(start, is_bloom_word);
        return to > start ? to : at;
      });
    case kNewlineChar:
      return split_by(piece, out, [&](uint32_t at) { return at + (r.is(at, kNewline) ? 1 : 0); });
    case kNewlineRuns:
      return split_by(piece, out, [&](uint32_t at) { return r.while_code(at, [](uint32_t c) { return c == '\n'; }); });
    case kTrailingSpace:
      return split_trailing_space(r, piece, out);
    case kMetaspaceWord:
      return split_before_spaces(r, piece, out);
    case kWhitespaceWord:
      return keep_matches(piece, out, [&](uint32_t at) {
        if (uint32_t to = r.while_code(at, is_word_char); to > at) return to;
        return r.while_code(at, [](uint32_t c) { return !is_word_char(c) && !has_class(c, kSpace); });
      });
    case kWhitespaceSplit:
    case kDropSpace:
      return keep_matches(piece, out, [&](uint32_t at) { return r.while_other(at, kSpace); });
    case kPunctuationChar:
      return split_by(piece, out, [&](uint32_t at) { return at + (is_hf_punctuation(r.code(at)) ? 1 : 0); });
    default:
      out.push_back(piece);
  }
}

}  // namespace tie::text
