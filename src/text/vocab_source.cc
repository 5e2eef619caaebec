#include "text/vocab_source.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "text/unicode.h"

namespace tie::text {
namespace {

// Bytes that the printable alphabet keeps as they are; the others follow from U+0100 on.
bool is_kept(uint32_t byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

const std::array<int16_t, 0x180>& printable_table() {
  static const auto table = [] {
    std::array<int16_t, 0x180> out;
    out.fill(-1);
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) out[is_kept(byte) ? byte : next++] = static_cast<int16_t>(byte);
    return out;
  }();
  return table;
}

// Tokens that end a turn or a text in the families that use them.
constexpr std::string_view kTurnEnds[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<|eot|>",
    "<|eom|>",
    "<｜end▁of▁sentence｜>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|eos|>",
    "<|endofturn|>",
    "<|assistant_end|>",
};

// Fill-in-the-middle tokens: control tokens, although some files call them ordinary text.
constexpr std::string_view kFillMarks[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>",        "▁<PRE>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>",  "<SUF>",        "▁<SUF>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>",   "<MID>",        "▁<MID>",
    "<|fim_pad|>",    "<fim-pad>",    "<fim_pad>",    "<PAD>",           "[PAD]",        "<|fim_repo|>",
    "<|repo_name|>",  "<fim-repo>",   "<REPO>",       "<reponame>",      "<|file_sep|>",
};

void make_control(SourceToken& token) {
  token.added = true;
  token.attributes =
      static_cast<uint8_t>((token.attributes & (image::kLeftStrip | image::kRightStrip)) | image::kControl);
}

}  // namespace

int byte_of_printable(uint32_t code) {
  const auto& table = printable_table();
  return code < table.size() ? table[code] : -1;
}

bool decode_printable(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (!text.empty()) {
    const Decoded d = decode_utf8(text);
    const int byte = d.valid ? byte_of_printable(d.code) : -1;
    if (byte < 0) return false;
    bytes.push_back(static_cast<char>(byte));
    text.remove_prefix(d.bytes);
  }
  return true;
}

void mark_fill_tokens(VocabSource& source) {
  for (SourceToken& token : source.tokens)
    if (std::find(std::begin(kFillMarks), std::end(kFillMarks), token.bytes) != std::end(kFillMarks))
      make_control(token);
}

void find_end_of_generation(VocabSource& source, bool all) {
  auto& eog = source.end_of_generation;
  if (source.eos != image::kNone) eog.push_back(source.eos);
  if (source.eot != image::kNone) eog.push_back(source.eot);
  bool has_return = false, has_call = false;
  std::vector<uint32_t> plain_ends;
  for (uint32_t id = 0; id < source.tokens.size(); ++id) {
    SourceToken& token = source.tokens[id];
    if (!all && !(token.attributes & image::kControl)) continue;
    // Some vocabularies hold "</s>" as an HTML tag: a control token for plain text's sake, but no end of an answer.
    const bool html_tag = token.bytes == "</s>" && !(token.attributes & image::kControl) && id != source.eos;
    if (html_tag && (token.attributes & image::kUserDefined)) continue;
    if (std::find(std::begin(kTurnEnds), std::end(kTurnEnds), token.bytes) == std::end(kTurnEnds)) continue;
    has_return |= token.bytes == "<|return|>";
    has_call |= token.bytes == "<|call|>";
    if (token.bytes == "<|end|>") plain_ends.push_back(id);
    if (!html_tag) eog.push_back(id);
    make_control(token);
    if (source.eot == image::kNone && id != source.eos &&
        (token.bytes == "<|eot_id|>" || token.bytes == "<|im_end|>" || token.bytes == "<end_of_turn>"))
      source.eot = id;
  }
  // The harmony format ends messages with <|end|> inside one answer.
  if (has_return && has_call)
    for (uint32_t id : plain_ends) eog.erase(std::remove(eog.begin(), eog.end(), id), eog.end());
}

}  // namespace tie::text
