#include "text/pattern_splitter.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace tie::text {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
constexpr uint32_t kMatchLimit = 2'000'000;
constexpr uint32_t kHeapLimitKiB = 64 << 10;

struct Span {
  uint32_t begin, end;
  bool match;
};

// Bytes that are no UTF-8 are replaced one for one, so that offsets stay and PCRE2 accepts the subject.
std::string valid_copy(std::string_view text) {
  std::string out(text);
  for (size_t at = 0; at < out.size();) {
    const Decoded d = decode_utf8(std::string_view(out).substr(at));
    if (!d.valid) out[at] = '\x1a';
    at += d.bytes;
  }
  return out;
}

std::vector<Span> arrange(const std::vector<Span>& spans, uint32_t behavior) {
  std::vector<Span> out;
  for (const Span& span : spans) {
    const bool previous_match = !out.empty() && out.back().match;
    switch (behavior & 15) {
      case kRemoved:
        if (!span.match) out.push_back(span);
        break;
      case kMergedWithPrevious:
        if (span.match && !out.empty() && !previous_match) {
          out.back().end = span.end;
          out.back().match = true;
        } else {
          out.push_back(span);
        }
        break;
      case kMergedWithNext:
        if (!span.match && previous_match) {
          out.back().end = span.end;
          out.back().match = false;
        } else {
          out.push_back(span);
        }
        break;
      case kContiguous:
        if (!out.empty() && previous_match == span.match)
          out.back().end = span.end;
        else
          out.push_back(span);
        break;
      default:
        out.push_back(span);
    }
  }
  return out;
}

}  // namespace

void PatternSplitter::Free::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

Result<PatternSplitter> PatternSplitter::compile(std::string_view pattern, uint32_t behavior) {
  if (pattern.size() > kMaxPatternBytes) return fail(Code::kTooLarge, "a pre-tokenizer pattern is too long");
  int error = 0;
  PCRE2_SIZE where = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &where, nullptr);
  if (!code) {
    PCRE2_UCHAR message[128] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return fail(Code::kUnsupportedFeature,
                fmt::format("pre-tokenizer pattern, at {}: {}", where, reinterpret_cast<const char*>(message)));
  }
  PatternSplitter out;
  out.code_.reset(code);
  out.behavior_ = behavior;
  return out;
}

Result<void> PatternSplitter::split(std::string_view text, const std::vector<Char>& chars, Piece piece,
                                    std::vector<Piece>& out) const {
  const uint32_t begin = chars[piece.begin].offset, end = chars[piece.end].offset;
  const std::string subject = valid_copy(text.substr(begin, end - begin));
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(static_cast<pcre2_code*>(code_.get()), nullptr), pcre2_match_data_free);
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(pcre2_match_context_create(nullptr),
                                                                                    pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKiB);

  std::vector<Span> spans;
  const bool inverted = behavior_ & kInverted;
  const auto add = [&](size_t from, size_t to, bool match) {
    if (from < to) spans.push_back({static_cast<uint32_t>(from), static_cast<uint32_t>(to), match != inverted});
  };
  size_t at = 0, gap = 0;
  while (at < subject.size()) {
    const int found = pcre2_match(static_cast<pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(subject.data()),
                                  subject.size(), at, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return fail(Code::kTooLarge, "the pre-tokenizer pattern passed its work limit on this text");
    const PCRE2_SIZE* where = pcre2_get_ovector_pointer(data.get());
    if (where[1] <= where[0]) {  // an empty match cuts where it stands
      if (where[0] > gap) {
        add(gap, where[0], false);
        gap = where[0];
      }
      if (where[0] >= subject.size()) break;
      at = where[0] + decode_utf8(std::string_view(subject).substr(where[0])).bytes;
      continue;
    }
    add(gap, where[0], false);
    add(where[0], where[1], true);
    at = gap = where[1];
  }
  add(gap, subject.size(), false);

  const auto index_of = [&](uint32_t offset) {
    const auto found = std::lower_bound(chars.begin() + piece.begin, chars.begin() + piece.end, begin + offset,
                                        [](const Char& c, uint32_t o) { return c.offset < o; });
    return static_cast<uint32_t>(found - chars.begin());
  };
  for (const Span& span : arrange(spans, behavior_)) out.push_back({index_of(span.begin), index_of(span.end)});
  return {};
}

}  // namespace tie::text
