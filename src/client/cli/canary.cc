#include "client/cli/canary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/random.h"
#include "client/cli/model_assets.h"
#include "inference.pb.h"
#include "inference/bones/single_sequence.h"
#include "os/memfd.h"
#include "supervision/model_owner/model_identity.h"
#include "text/prompt.h"

namespace tie::cli {
namespace {

constexpr int kWords = 16;
constexpr size_t kLettersEachSide = 7;
constexpr size_t kTurnKeyBytes = 32;
constexpr size_t kLineBytes = 32;
constexpr uint32_t kLineStep = 8;   // every eighth line of a key group
constexpr uint32_t kMaxGroups = 4;  // groups of tokens whose rows are looked for

std::string random_word() {
  std::string out;
  for (size_t i = 0; i < 2 * kLettersEachSide; ++i) {
    if (i == kLettersEachSide) out += "\"\xc3\xb6";
    out += static_cast<char>('a' + random_u64() % 26);
  }
  return out;
}

ByteView view(const os::Mapping& file) {
  return {reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size()};
}

Result<std::vector<int32_t>> render(const text::PromptBuilder& builder, const std::string& user) {
  text::ChatInput input;
  input.messages_json = nlohmann::json{{{"role", "user"}, {"content", user}}}.dump();
  TIE_TRY(text::Prompt prompt, builder.build(input));
  return std::vector<int32_t>(prompt.ids.begin(), prompt.ids.end());
}

struct Span {
  uint32_t begin, end;
};

// Where the words' tokens lie: what differs from the prompt of another message.
Span span_of_words(const std::vector<int32_t>& ids, const std::vector<int32_t>& other) {
  auto first = std::mismatch(ids.begin(), ids.end(), other.begin(), other.end()).first - ids.begin();
  auto last = std::mismatch(ids.rbegin(), ids.rend(), other.rbegin(), other.rend()).first - ids.rbegin();
  auto size = static_cast<ptrdiff_t>(ids.size());
  return {static_cast<uint32_t>(first), static_cast<uint32_t>(std::max(first, size - last))};
}

Bytes copied(std::span<const std::byte> block, size_t at, size_t size) {
  const auto* from = reinterpret_cast<const uint8_t*>(block.data()) + at;
  return Bytes(from, from + size);
}

// Lines of a group's keys and the beginning of its values, as the cache keeps them, of the first, middle and last
// layer.
void copy_rows(const bones::SingleSequence& sequence, Span words, CanaryContent& out) {
  const bones::KvLayout& layout = sequence.kv_layout();
  const uint32_t group = bones::kKvGroupTokens;
  const size_t line = kLineBytes, row = layout.head_dim * layout.element_bytes();
  uint32_t first = (words.begin + group - 1) / group, last = words.end / group;
  for (uint32_t g = first; g < std::min(last, first + kMaxGroups); ++g) {
    auto block = sequence.kv_block(g * group / layout.block_tokens);
    uint32_t token = g * group % layout.block_tokens;
    for (uint32_t layer : {0u, layout.n_layers / 2, layout.n_layers - 1})
      for (uint32_t head : {0u, layout.n_kv_heads - 1}) {
        size_t record = layer * layout.layer_bytes() + head * layout.head_bytes();
        for (size_t at = 0; at < layout.group_bytes(); at += kLineStep * line)
          out.k_rows.push_back(copied(block, record + layout.keys_at(token / group) + at, line));
        out.v_rows.push_back(copied(block, record + layout.values_at(token / group), row));
      }
  }
}

}  // namespace

Result<CanaryContent> make_canary(const std::string& assets, const std::string& model) {
  if (!owner::valid_model_name(model)) return fail(Code::kBadRequest, "that cannot be a model's name");
  std::string folder = assets + "/models/" + model + "/";
  TIE_TRY(auto image, os::Mapping::file_read_only(folder + owner::kTokenizerFile));
  TIE_TRY(auto weights, os::Mapping::file_read_only(folder + owner::kWeightsFile));
  TIE_TRY(auto vocab, text::Vocab::open(view(image)));
  TIE_TRY(auto tokenizer, text::Tokenizer::create(vocab));
  auto source = os::read_file(folder + owner::kTemplateFile, size_t{1} << 20);
  if (!source && source.error().code != Code::kNotFound) return std::unexpected(std::move(source.error()));
  TIE_TRY(auto builder, text::PromptBuilder::create(tokenizer, source ? as_text(*source) : std::string_view{}));

  CanaryContent out;
  for (int i = 0; i < kWords; ++i) {
    out.words.push_back(random_word());
    out.text += (i == 0 ? "" : " ") + out.words.back();
  }
  TIE_TRY(auto ids, render(builder, out.text));
  TIE_TRY(auto other, render(builder, "Zwei."));
  Span words = span_of_words(ids, other);
  out.ids.assign(ids.begin() + words.begin, ids.begin() + words.end);
  out.prompt_tokens = ids.size();

  bones::SingleSequenceOptions options;
  options.n_threads = std::max(1u, std::thread::hardware_concurrency());
  options.max_tokens = static_cast<uint32_t>(ids.size()) + 1;
  options.logit_rows = 1;
  options.kv_type.reset();
  TIE_TRY(const std::string kv_cache, kv_cache_of(assets, model));
  if (!kv_cache.empty()) {
    TIE_TRY(options.kv_type, bones::kv_type_named(kv_cache));
  }
  TIE_TRY(auto sequence, bones::SingleSequence::from_gguf(view(weights), options));
  TIE_TRY(auto logits, sequence.append(ids));
  (void)logits;
  copy_rows(sequence, words, out);
  if (out.k_rows.empty()) return fail(Code::kContextExceeded, "the canary has too few tokens to fill a group of keys");
  return out;
}

v1::InferenceRequest canary_request(const CanaryContent& canary, const std::string& model, int max_tokens,
                                    std::vector<Bytes>& turn_keys) {
  v1::InferenceRequest request;
  request.set_model(model);
  auto* message = request.mutable_conversation()->add_messages();
  message->set_role("user");
  message->add_parts()->set_text(canary.text);
  if (max_tokens > 0) request.mutable_sampling()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_ignore_eos(true);
  for (auto* key : {request.mutable_turn_key_read(), request.mutable_turn_key_write()}) {
    Bytes drawn(kTurnKeyBytes);
    random_bytes(drawn);
    key->assign(as_text(drawn));
    turn_keys.push_back(std::move(drawn));
  }
  return request;
}

}  // namespace tie::cli
