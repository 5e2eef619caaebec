#include "text/detokenizer.h"

#include "text/unicode.h"

namespace tie::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The bytes as valid UTF-8: each maximal bad part becomes U+FFFD.
std::string repaired(std::string_view bytes) {
  std::string out;
  bool in_bad_run = false;
  while (!bytes.empty()) {
    const Decoded d = decode_utf8(bytes);
    if (d.valid) out.append(bytes.substr(0, d.bytes));
    // A byte that continues nothing belongs to the bad part before it.
    else if (!in_bad_run || (static_cast<unsigned char>(bytes[0]) & 0xC0) != 0x80)
      out.append(kReplacement);
    in_bad_run = !d.valid;
    bytes.remove_prefix(d.bytes);
  }
  return out;
}

bool strips_leading_space(const Vocab& vocab) {
  return vocab.header().flags & image::kStripLeadingSpace;
}

}  // namespace

std::string Detokenizer::push(TokenId id) {
  const bool control = vocab_->is_control(id);
  std::string_view bytes = as_text(vocab_->token_bytes(id));
  if (control && !options_.show_control) return {};
  if (at_start_ && !control) {
    if (strips_leading_space(*vocab_) && bytes.starts_with(' ')) bytes.remove_prefix(1);
    at_start_ = false;
  }
  pending_.append(bytes);
  return take_whole(false);
}

std::string Detokenizer::finish() {
  std::string out = take_whole(true);
  pending_.clear();
  at_start_ = options_.at_start;
  return out;
}

std::string Detokenizer::take_whole(bool final) {
  bool open = false;
  const size_t whole = final ? pending_.size() : whole_utf8_prefix(pending_, open);
  if (whole == 0) return {};
  std::string out = repaired(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return out;
}

std::string detokenize(const Vocab& vocab, std::span<const TokenId> ids, const DetokenizeOptions& options) {
  std::string out;
  bool at_start = options.at_start && strips_leading_space(vocab);
  for (TokenId id : ids) {
    const bool control = vocab.is_control(id);
    if (control && !options.show_control) continue;
    std::string_view bytes = as_text(vocab.token_bytes(id));
    if (at_start && !control) {
      if (bytes.starts_with(' ')) bytes.remove_prefix(1);
      at_start = false;
    }
    out.append(bytes);
  }
  return out;
}

Bytes token_bytes_for_logprobs(const Vocab& vocab, TokenId id) {
  const ByteView bytes = vocab.token_bytes(id);
  return Bytes(bytes.begin(), bytes.end());
}

}  // namespace tie::text
