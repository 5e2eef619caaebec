// Reads the tokenizer metadata of a GGUF file into a VocabSource.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "text/model_assets.h"
#include "text/split_rules.h"
#include "text/unicode.h"
#include "text/vocab_source.h"

namespace tie::text {
namespace {

using model_files::Gguf;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";

std::string replace_metaspace(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at, kMetaspace.size()) == kMetaspace) {
      out.push_back(' ');
      at += kMetaspace.size();
    } else {
      out.push_back(text[at++]);
    }
  }
  return out;
}

// "<0x0A>" -> 10, or -1.
int byte_of_name(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  auto bytes = from_hex(text.substr(3, 2));
  return bytes ? (*bytes)[0] : -1;
}

uint8_t attributes_of_type(int64_t type) {
  switch (type) {
    case 2:
      return image::kUnknown;
    case 3:
      return image::kControl;
    case 4:
      return image::kUserDefined;
    case 5:
      return image::kUnused;
    case 6:
      return image::kByte;
    default:
      return image::kNormal;
  }
}

template <typename T>
Result<std::optional<T>> optional_value(Result<T> value) {
  if (value) return std::optional<T>(std::move(*value));
  if (value.error().code == Code::kNotFound) return std::optional<T>();
  return std::unexpected(std::move(value.error()));
}

Result<void> read_tokens(const Gguf& gguf, VocabSource& source) {
  TIE_TRY(auto array, gguf.get_array("tokenizer.ggml.tokens"));
  TIE_TRY(auto texts, array.strings());
  if (texts.size() > kMaxVocabTokens)
    return fail(Code::kTooLarge, fmt::format("{} tokens, the limit is {}", texts.size(), kMaxVocabTokens));
  std::vector<int64_t> types;
  TIE_TRY(auto type_array, optional_value(gguf.get_array("tokenizer.ggml.token_type")));
  if (type_array) {
    TIE_TRY(types, type_array->integers());
  }
  std::vector<double> scores;
  TIE_TRY(auto score_array, optional_value(gguf.get_array("tokenizer.ggml.scores")));
  if (score_array) {
    TIE_TRY(scores, score_array->numbers());
  }
  if ((!types.empty() && types.size() != texts.size()) || (!scores.empty() && scores.size() != texts.size()))
    return fail(Code::kBadRequest, "the token, type and score arrays of the vocabulary differ in length");

  source.tokens.reserve(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    SourceToken token;
    token.attributes = types.empty() ? uint8_t{image::kNormal} : attributes_of_type(types[id]);
    token.score = scores.empty() ? 0.0 : scores[id];
    token.added = token.attributes & (image::kControl | image::kUserDefined | image::kUnknown);
    const std::string_view text = texts[id];
    token.merged = !(source.flags & image::kMetaspace) || text.find(' ') == std::string_view::npos;
    if (token.added) {
      token.bytes = std::string(text);
    } else if (source.model == image::kByteLevelBpe) {
      if (!decode_printable(text, token.bytes)) token.bytes = std::string(text);
    } else if (int byte = byte_of_name(text); byte >= 0 && (token.attributes & image::kByte)) {
      token.bytes = std::string(1, static_cast<char>(byte));
    } else {
      token.bytes = replace_metaspace(text);
    }
    source.tokens.push_back(std::move(token));
  }
  return {};
}

Result<void> read_merges(const Gguf& gguf, VocabSource& source) {
  TIE_TRY(auto array, gguf.get_array("tokenizer.ggml.merges"));
  TIE_TRY(auto texts, array.strings());
  source.merges.reserve(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const size_t space = texts[rank].find(' ', 1);
    if (space == std::string_view::npos)
      return fail(Code::kBadRequest, fmt::format("merge {} of the vocabulary has no two parts", rank));
    std::string left, right;
    if (source.model == image::kByteLevelBpe) {
      if (!decode_printable(texts[rank].substr(0, space), left) ||
          !decode_printable(texts[rank].substr(space + 1), right))
        continue;
    } else {
      left = replace_metaspace(texts[rank].substr(0, space));
      right = replace_metaspace(texts[rank].substr(space + 1));
    }
    source.merges.emplace_back(std::move(left), std::move(right));
  }
  return {};
}

Result<void> read_ids(const Gguf& gguf, VocabSource& source) {
  const std::pair<const char*, uint32_t*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &source.bos},     {"tokenizer.ggml.eos_token_id", &source.eos},
      {"tokenizer.ggml.eot_token_id", &source.eot},     {"tokenizer.ggml.unknown_token_id", &source.unk},
      {"tokenizer.ggml.padding_token_id", &source.pad},
  };
  for (const auto& [key, id] : ids) {
    TIE_TRY(auto value, optional_value(gguf.get_u64(key)));
    if (value) *id = *value < source.tokens.size() ? static_cast<uint32_t>(*value) : image::kNone;
  }
  TIE_TRY(auto eom, optional_value(gguf.get_u64("tokenizer.ggml.eom_token_id")));
  if (eom && *eom < source.tokens.size()) source.end_of_generation.push_back(static_cast<uint32_t>(*eom));
  return {};
}

void set_flag(VocabSource& source, uint32_t flag, bool on) {
  source.flags = on ? source.flags | flag : source.flags & ~flag;
}

Result<void> read_flags(const Gguf& gguf, VocabSource& source) {
  const std::pair<const char*, uint32_t> flags[] = {
      {"tokenizer.ggml.add_bos_token", image::kAddBos},
      {"tokenizer.ggml.add_eos_token", image::kAddEos},
      {"tokenizer.ggml.add_space_prefix", image::kAddSpacePrefix},
  };
  for (const auto& [key, flag] : flags) {
    TIE_TRY(auto value, optional_value(gguf.get_bool(key)));
    if (value) set_flag(source, flag, *value);
  }
  if (source.flags & image::kAddSpacePrefix) source.flags |= image::kStripLeadingSpace;
  return {};
}

// GGUF files carry no strip attributes; these families are known to have them.
void apply_known_strips(const Gguf& gguf, std::string_view pre, VocabSource& source) {
  std::string name(gguf.get_string("general.name").value_or(""));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool phi3 = name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
  const bool jina = pre == "jina-v2-de" || pre == "jina-v2-es" || pre == "jina-v2-code";
  for (SourceToken& token : source.tokens) {
    if (!token.added) continue;
    if (phi3 && token.bytes != "<unk>" && token.bytes != "<s>" && token.bytes != "<|endoftext|>")
      token.attributes |= image::kRightStrip;
    if (jina && token.bytes == "<mask>") token.attributes |= image::kLeftStrip;
  }
}

}  // namespace

Result<Bytes> compile_vocab_image(const Gguf& gguf) {
  TIE_TRY(std::string_view model, gguf.get_string("tokenizer.ggml.model"));
  const std::string_view pre = gguf.get_string("tokenizer.ggml.pre").value_or("default");
  VocabSource source;
  if (model == "gpt2") {
    source.model = image::kByteLevelBpe;
    TIE_CHECK_OK(apply_pre_tokenizer_name(pre, source));
    if (pre == "falcon") source.bos = source.eos = 11;
  } else if (model == "llama") {
    source.model = image::kSpm;
    source.flags = image::kMetaspace | image::kAddBos | image::kAddSpacePrefix | image::kByteFallback;
    source.bos = 1, source.eos = 2, source.unk = 0;
  } else if (model == "gemma4") {
    source.model = image::kCharBpe;
    source.flags = image::kMetaspace | image::kByteFallback | image::kAddBos | image::kWholeNewlineRuns;
    source.steps.push_back({kNewlineRuns});
  } else {
    return fail(Code::kUnsupportedFeature,
                fmt::format("the tokenizer model \"{}\" is not supported (gpt2, llama and gemma4 are)", model));
  }
  TIE_CHECK_OK(read_tokens(gguf, source));
  if (source.model != image::kSpm) TIE_CHECK_OK(read_merges(gguf, source));
  TIE_CHECK_OK(read_ids(gguf, source));
  TIE_CHECK_OK(read_flags(gguf, source));
  for (uint32_t* id : {&source.bos, &source.eos, &source.unk})
    if (*id >= source.tokens.size()) *id = image::kNone;
  find_end_of_generation(source, true);
  mark_fill_tokens(source);
  apply_known_strips(gguf, pre, source);
  return compile_image(source);
}

}  // namespace tie::text
