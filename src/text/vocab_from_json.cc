// Reads a Hugging Face tokenizer.json (with tokenizer_config.json beside it, when there is one) into a VocabSource.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/json_guard.h"
#include "text/model_assets.h"
#include "text/split_rules.h"
#include "text/vocab_source.h"

namespace tie::text {
namespace {

using Json = nlohmann::json;  // order does not matter here, and the ordered kind is quadratic in an object's size

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kMaxDepth = 64;
constexpr std::string_view kMetaspaceMark = "\xE2\x96\x81";

std::unexpected<Error> unsupported(std::string message) {
  return fail(Code::kUnsupportedFeature, "tokenizer.json: " + std::move(message));
}
std::unexpected<Error> malformed(std::string message) {
  return fail(Code::kBadRequest, "tokenizer.json: " + std::move(message));
}

// The member, or null where there is none.
const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}
std::string text_of(const Json& object, const char* key) {
  const Json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}
bool flag_of(const Json& object, const char* key, bool otherwise) {
  const Json& value = member(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

// A node, or the nodes of a Sequence (however deep), in order.
void flatten(const Json& node, const char* list, std::vector<const Json*>& out) {
  if (!node.is_object()) return;
  if (text_of(node, "type") == "Sequence") {
    for (const Json& one : member(node, list)) flatten(one, list, out);
  } else {
    out.push_back(&node);
  }
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

struct KnownPattern {
  std::string_view pattern;
  SplitKind kind;
};
constexpr KnownPattern kKnownPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     kQwen2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     kQwen35},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     kO200k},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     kTekken},
    {R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     kKimi},
    {R"(\p{N}{1,3})", kDigits3},
    {R"(\p{N})", kDigit},
    {R"(\p{N}+)", kDigitRun},
    {"[\r\n]", kNewlineChar},
    {"\\s?\\p{L}+", kSpaceLetters},
    {"\\s?\\p{P}+", kSpacePunctuation},
    {"[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+", kCjkKana},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     kDeepseek3},
};

class Reader {
 public:
  Reader(const Json& root, const Json& config) : root_(root), config_(config) {}

  Result<VocabSource> read() {
    TIE_CHECK_OK(read_normalizer());
    TIE_CHECK_OK(read_pre_tokenizer());
    TIE_CHECK_OK(read_model());
    TIE_CHECK_OK(read_added_tokens());
    read_post_processor();
    read_config();
    read_decoder();
    find_end_of_generation(source_, false);
    return std::move(source_);
  }

 private:
  Result<void> read_normalizer() {
    std::vector<const Json*> nodes;
    flatten(member(root_, "normalizer"), "normalizers", nodes);
    for (const Json* node : nodes) {
      const std::string type = text_of(*node, "type");
      if (type == "NFC")
        source_.flags |= image::kNormalizeNfc;
      else if (type == "NFD")
        source_.flags |= image::kNormalizeNfd;
      else if (type == "NFKC")
        source_.flags |= image::kNormalizeNfkc;
      else if (type == "Lowercase")
        source_.flags |= image::kLowercase;
      else if (type == "Prepend" && text_of(*node, "prepend") == kMetaspaceMark)
        source_.flags |= image::kAddSpacePrefix;
      else if (type == "Replace" && text_of(member(*node, "pattern"), "String") == " " &&
               text_of(*node, "content") == kMetaspaceMark)
        normalized_metaspace_ = true;
      else
        return unsupported(fmt::format("the normalizer {} is not supported", type));
    }
    if (normalized_metaspace_) source_.flags |= image::kMetaspace;
    return {};
  }

  Result<void> read_pre_tokenizer() {
    std::vector<const Json*> nodes;
    flatten(member(root_, "pre_tokenizer"), "pretokenizers", nodes);
    for (size_t i = 0; i < nodes.size(); ++i) TIE_CHECK_OK(read_pre_tokenizer_node(*nodes[i], i == 0));
    if (source_.steps.size() > 16) return unsupported("too many pre-tokenizer steps");
    return {};
  }

  Result<void> read_pre_tokenizer_node(const Json& node, bool is_first) {
    const std::string type = text_of(node, "type");
    if (type == "ByteLevel") return read_byte_level(node, is_first);
    if (type == "Metaspace") return read_metaspace(node, is_first);
    if (type == "Split") return read_split(node);
    if (type == "Digits") {
      source_.steps.push_back({flag_of(node, "individual_digits", false) ? kDigit : kDigitRun});
    } else if (type == "Punctuation" &&
               (text_of(node, "behavior").empty() || text_of(node, "behavior") == "Isolated")) {
      source_.steps.push_back({kPunctuationChar});
    } else if (type == "Whitespace") {
      source_.steps.push_back({kWhitespaceWord});
    } else if (type == "WhitespaceSplit") {
      source_.steps.push_back({kWhitespaceSplit});
    } else {
      return unsupported(fmt::format("the pre-tokenizer {} is not supported", type));
    }
    return {};
  }

  Result<void> read_byte_level(const Json& node, bool is_first) {
    byte_level_ = true;
    if (flag_of(node, "add_prefix_space", true)) {
      if (!is_first) return unsupported("add_prefix_space behind another pre-tokenizer is not supported");
      source_.flags |= image::kAddSpacePrefix | image::kPrefixUnlessSpace;
    }
    if (flag_of(node, "use_regex", true)) source_.steps.push_back({kGpt2});
    return {};
  }

  Result<void> read_metaspace(const Json& node, bool is_first) {
    if (!is_first) return unsupported("Metaspace behind another pre-tokenizer is not supported");
    const std::string replacement = text_of(node, "replacement");
    if (!replacement.empty() && replacement != kMetaspaceMark)
      return unsupported("Metaspace with another replacement is not supported");
    source_.flags |= image::kMetaspace;
    std::string scheme = text_of(node, "prepend_scheme");
    if (scheme.empty()) scheme = flag_of(node, "add_prefix_space", true) ? "always" : "never";
    if (scheme != "never")
      source_.flags |= image::kAddSpacePrefix | image::kPrefixUnlessSpace | image::kStripLeadingSpace;
    if (scheme == "first") source_.flags |= image::kPrefixFirstOnly;
    if (flag_of(node, "split", true)) source_.steps.push_back({kMetaspaceWord});
    return {};
  }

  Result<void> read_split(const Json& node) {
    const std::string behavior_name = text_of(node, "behavior");
    static constexpr std::pair<std::string_view, uint32_t> kBehaviors[] = {{"Isolated", kIsolated},
                                                                           {"Removed", kRemoved},
                                                                           {"MergedWithPrevious", kMergedWithPrevious},
                                                                           {"MergedWithNext", kMergedWithNext},
                                                                           {"Contiguous", kContiguous}};
    const auto behavior = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                       [&](const auto& one) { return one.first == behavior_name; });
    if (behavior == std::end(kBehaviors))
      return unsupported(fmt::format("the split behavior {} is not supported", behavior_name));
    const bool inverted = flag_of(node, "invert", false);
    const std::string literal = text_of(member(node, "pattern"), "String");
    std::string pattern = text_of(member(node, "pattern"), "Regex");
    if (!literal.empty()) {
      // After the normalizer wrote spaces as U+2581 a split at spaces finds none.
      if (normalized_metaspace_ && literal == " ") return {};
      std::string quoted = literal;
      if (normalized_metaspace_) replace_all(quoted, kMetaspaceMark, " ");
      replace_all(quoted, "\\E", "\\E\\\\E\\Q");
      pattern = "\\Q" + quoted + "\\E";
    } else if (!inverted && (behavior->second == kIsolated || is_total(pattern))) {
      for (const KnownPattern& known : kKnownPatterns)
        if (known.pattern == pattern) {
          source_.steps.push_back({known.kind});
          return {};
        }
    }
    if (pattern.empty()) return malformed("a Split has no pattern");
    if (pattern.find("&&") != std::string::npos) return unsupported("a split pattern uses a class intersection");
    source_.steps.push_back({kPattern, behavior->second | (inverted ? uint32_t{kInverted} : 0u), pattern});
    return {};
  }

  // Patterns that match everything: what happens to gaps does not matter (some files say Removed with invert).
  static bool is_total(std::string_view pattern) { return pattern.ends_with(R"(|\s+(?!\S)|\s+)"); }

  // A token's text as the bytes it stands for.
  std::string bytes_of(const std::string& text) const {
    std::string bytes;
    if (source_.model == image::kByteLevelBpe) return decode_printable(text, bytes) ? bytes : text;
    bytes = text;
    if (source_.flags & image::kMetaspace) replace_all(bytes, kMetaspaceMark, " ");
    return bytes;
  }

  Result<void> put_token(uint64_t id, const std::string& text, double score) {
    if (id >= kMaxVocabTokens)
      return fail(Code::kTooLarge, fmt::format("tokenizer.json: token id {} is over the limit", id));
    if (id >= source_.tokens.size()) {
      // A hole in the numbering stays unused.
      if (id > source_.tokens.size() + (1u << 20))
        return malformed(fmt::format("token id {} is far from the others", id));
      source_.tokens.resize(id + 1, SourceToken{.attributes = image::kUnused});
    }
    SourceToken& token = source_.tokens[id];
    token.attributes = image::kNormal;
    token.score = score;
    token.merged = !(source_.flags & image::kMetaspace) || text.find(' ') == std::string::npos;
    if ((source_.flags & image::kByteFallback) && text.size() == 6 && text.starts_with("<0x") && text.back() == '>') {
      if (auto byte = from_hex(std::string_view(text).substr(3, 2))) {
        token.bytes = std::string(1, static_cast<char>((*byte)[0]));
        token.attributes = image::kByte;
        return {};
      }
    }
    token.bytes = bytes_of(text);
    return {};
  }

  Result<void> read_model() {
    const Json& model = member(root_, "model");
    std::string type = text_of(model, "type");
    if (type.empty() && model.is_object() && model.contains("merges")) type = "BPE";
    if (flag_of(model, "byte_fallback", false)) source_.flags |= image::kByteFallback;
    if (flag_of(model, "fuse_unk", false)) source_.flags |= image::kFuseUnknown;
    if (flag_of(model, "ignore_merges", false)) source_.flags |= image::kIgnoreMerges;
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text_of(model, affix).empty()) return unsupported(fmt::format("{} is not supported", affix));
    if (type == "BPE") return read_bpe(model);
    if (type == "Unigram") return read_unigram(model);
    return unsupported(fmt::format("the model type {} is not supported (BPE and Unigram are)", type));
  }

  Result<void> read_bpe(const Json& model) {
    source_.model = byte_level_ ? image::kByteLevelBpe : image::kCharBpe;
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_object() || vocab.empty()) return malformed("the model has no vocabulary");
    source_.tokens.resize(std::min<size_t>(vocab.size(), kMaxVocabTokens), SourceToken{.attributes = image::kUnused});
    for (const auto& [text, id] : vocab.items()) {
      if (!id.is_number_unsigned()) return malformed("a token id is not a number");
      TIE_CHECK_OK(put_token(id.get<uint64_t>(), text, 0));
    }
    const Json& merges = member(model, "merges");
    if (!merges.is_array()) return malformed("the model has no merges");
    for (const Json& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ', 1);
        if (text.empty() || space == std::string::npos) return malformed("a merge has no two parts");
        left = text.substr(0, space), right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
      } else {
        return malformed("a merge has no two parts");
      }
      source_.merges.emplace_back(bytes_of(left), bytes_of(right));
    }
    const std::string unknown = text_of(model, "unk_token");
    if (!unknown.empty() && vocab.contains(unknown)) mark_unknown(vocab[unknown].get<uint64_t>(), unknown);
    return {};
  }

  Result<void> read_unigram(const Json& model) {
    source_.model = image::kUnigram;
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_array() || vocab.empty()) return malformed("the model has no vocabulary");
    uint64_t id = 0;
    for (const Json& item : vocab) {
      if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number())
        return malformed("a vocabulary item is not [text, score]");
      TIE_CHECK_OK(put_token(id++, item[0].get<std::string>(), item[1].get<double>()));
    }
    const Json& unknown = member(model, "unk_id");
    if (unknown.is_number_unsigned() && unknown.get<uint64_t>() < source_.tokens.size())
      mark_unknown(unknown.get<uint64_t>(), source_.tokens[unknown.get<uint64_t>()].bytes);
    return {};
  }

  void mark_unknown(uint64_t id, const std::string& text) {
    if (id >= source_.tokens.size()) return;
    source_.unk = static_cast<uint32_t>(id);
    source_.tokens[id].attributes = image::kUnknown;
    source_.tokens[id].bytes = text;
  }

  Result<void> read_added_tokens() {
    const Json& added = member(root_, "added_tokens");
    if (!added.is_array()) return {};
    for (const Json& one : added) {
      const Json& id = member(one, "id");
      const std::string content = text_of(one, "content");
      if (!id.is_number_unsigned() || content.empty()) return malformed("an added token has no id or content");
      if (flag_of(one, "single_word", false)) return unsupported("added tokens with single_word are not supported");
      TIE_CHECK_OK(put_token(id.get<uint64_t>(), content, 0));
      SourceToken& token = source_.tokens[id.get<uint64_t>()];
      token.added = true;
      token.literal = content;
      token.attributes = flag_of(one, "special", false) ? image::kControl : image::kUserDefined;
      // An ordinary added token may also be a piece that merges make, with its spaces written as U+2581.
      const bool piece = token.attributes == image::kUserDefined && source_.model != image::kByteLevelBpe;
      token.bytes = piece ? bytes_of(content) : content;
      if (id.get<uint64_t>() == source_.unk) token.attributes = image::kUnknown;
      if (flag_of(one, "lstrip", false)) token.attributes |= image::kLeftStrip;
      if (flag_of(one, "rstrip", false)) token.attributes |= image::kRightStrip;
    }
    return {};
  }

  uint32_t id_of(const std::string& text) const {
    if (text.empty()) return image::kNone;
    for (uint32_t id = 0; id < source_.tokens.size(); ++id)
      if (source_.tokens[id].bytes == text &&
          (source_.tokens[id].added || source_.tokens[id].attributes & image::kUnknown))
        return id;
    return image::kNone;
  }

  void read_post_processor() {
    std::vector<const Json*> nodes;
    flatten(member(root_, "post_processor"), "processors", nodes);
    for (const Json* node : nodes) {
      const std::string type = text_of(*node, "type");
      if (type == "TemplateProcessing") {
        bool before = true;
        for (const Json& part : member(*node, "single")) {
          if (part.contains("Sequence")) before = false;
          const uint32_t id = id_of(text_of(member(part, "SpecialToken"), "id"));
          if (id == image::kNone) continue;
          (before ? source_.bos : source_.eos) = id;
          source_.flags |= before ? image::kAddBos : image::kAddEos;
        }
      } else if (type == "RobertaProcessing" || type == "BertProcessing") {
        const auto first_text = [&](const char* key) {
          return member(*node, key).is_array() && member(*node, key).size() > 0 && member(*node, key)[0].is_string()
                     ? member(*node, key)[0].get<std::string>()
                     : "";
        };
        source_.bos = id_of(first_text("cls"));
        source_.eos = id_of(first_text("sep"));
        source_.flags |= image::kAddBos | image::kAddEos;
      }
    }
  }

  // tokenizer_config.json names its tokens as text or as an object with content.
  std::string config_token(const char* key) const {
    const std::string direct = text_of(config_, key);
    return direct.empty() ? text_of(member(config_, key), "content") : direct;
  }

  void read_config() {
    const std::pair<const char*, uint32_t*> tokens[] = {{"bos_token", &source_.bos},
                                                        {"eos_token", &source_.eos},
                                                        {"pad_token", &source_.pad},
                                                        {"unk_token", &source_.unk}};
    for (const auto& [key, id] : tokens)
      if (const uint32_t found = id_of(config_token(key)); found != image::kNone) *id = found;
    const std::pair<const char*, uint32_t> flags[] = {{"add_bos_token", image::kAddBos},
                                                      {"add_eos_token", image::kAddEos}};
    for (const auto& [key, flag] : flags)
      if (member(config_, key).is_boolean())
        source_.flags = member(config_, key).get<bool>() ? source_.flags | flag : source_.flags & ~flag;
    if (source_.eos != image::kNone) return;
    for (const char* known : {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>", "<|endoftext|>", "<eos>",
                              "<|end_of_text|>", "<｜end▁of▁sentence｜>"})
      if (source_.eos = id_of(known); source_.eos != image::kNone) return;
  }

  void read_decoder() {
    std::vector<const Json*> nodes;
    flatten(member(root_, "decoder"), "decoders", nodes);
    for (const Json* node : nodes)
      if (text_of(*node, "type") == "Strip" && text_of(*node, "content") == " " && member(*node, "start") == 1)
        source_.flags |= image::kStripLeadingSpace;
  }

  const Json& root_;
  const Json& config_;
  VocabSource source_;
  bool byte_level_ = false;
  bool normalized_metaspace_ = false;
};

Result<Json> parse(std::string_view text, const char* what) {
  if (text.size() > kMaxFileBytes) return fail(Code::kTooLarge, fmt::format("{} is too large", what));
  if (json_is_unwieldy(text, {.depth = kMaxDepth, .members = kMaxVocabTokens}))
    return fail(Code::kBadRequest, fmt::format("{} is nested too deeply", what));
  Json out = Json::parse(text, nullptr, false);
  if (!out.is_object()) return fail(Code::kBadRequest, fmt::format("{} is not a JSON object", what));
  return out;
}

}  // namespace

Result<Bytes> compile_vocab_image_from_json(std::string_view tokenizer_json, std::string_view config_json) {
  TIE_TRY(const Json root, parse(tokenizer_json, "tokenizer.json"));
  Json config;
  if (!config_json.empty()) {
    TIE_TRY(config, parse(config_json, "tokenizer_config.json"));
  }
  TIE_TRY(const VocabSource source, Reader(root, config).read());
  return compile_image(source);
}

}  // namespace tie::text
