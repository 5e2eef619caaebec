// First byte: which template; the rest, cut at a zero byte: content and name of a user's message. Whatever they are,
// the prompt's control tokens must be those that the template writes for a harmless message.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "text/model_assets.h"
#include "text/prompt.h"

namespace {

using namespace tie;
using namespace tie::text;

constexpr std::string_view kTokenizer =
    R"({"added_tokens":[{"id":4,"content":"<|im_start|>","special":true},{"id":5,"content":"<|im_end|>","special":true},
  {"id":6,"content":"<s>","special":true},{"id":7,"content":"[X]","special":true},{"id":8,"content":"<t>","special":false},{"id":9,"content":"<|im_end|>>","special":true}],
  "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3},"merges":["a b"]}})";

constexpr std::string_view kTemplates[] = {
    "<|im_start|>{{ messages[0].content }}<|im_end|>{{ messages[0].name }}[X]",
    "<|im_start|>{{ messages[0].content | trim | lower }}[{{ messages[0].name }}]",
    "<|im_start|>{{ messages[0].content | replace('X', '') }}<{{ messages[0].name | upper }}>",
    "<|im_start|>{{ messages[0].content | reverse ~ messages[0].name }}",
    "<s>{{ messages[0] | tojson }}{{ messages[0] }}",
    "<s>{{ messages[0].content[1:] }}{{ messages[0].content[:-1] }}{{ messages[0].content.split('X') | join('') }}",
    "{{ '<|' + messages[0].content + '|>' }}{% for c in messages[0].content %}{{ c }}{% endfor %}",
    "<{{ messages[0].content }}{{ messages[0].name }}>",
};

std::vector<TokenId> controls(const PromptBuilder& prompts, const Vocab& vocab, std::string_view content,
                              std::string_view name, bool& ok) {
  const nlohmann::json messages = nlohmann::json::array({{{"role", "user"}, {"content", content}, {"name", name}}});
  auto prompt = prompts.build(
      {.messages_json = messages.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), .now_unix_s = 1});
  ok = prompt.has_value();
  std::vector<TokenId> out;
  if (prompt)
    for (TokenId id : prompt->ids)
      if (vocab.is_control(id)) out.push_back(id);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Bytes image = compile_vocab_image_from_json(kTokenizer).value();
  static const Vocab vocab = Vocab::open(image).value();
  static const Tokenizer tokenizer = Tokenizer::create(vocab).value();
  static const auto* builders = [] {
    auto* out = new std::vector<PromptBuilder>;
    for (std::string_view source : kTemplates) out->push_back(PromptBuilder::create(tokenizer, source).value());
    return out;
  }();
  if (size == 0) return 0;
  const PromptBuilder& prompts = (*builders)[data[0] % builders->size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t zero = text.find('\0');
  bool ok = false, harmless_ok = false;
  const auto got =
      controls(prompts, vocab, text.substr(0, zero), zero == std::string_view::npos ? "n" : text.substr(zero + 1), ok);
  const auto wanted = controls(prompts, vocab, "hello", "n", harmless_ok);
  if (ok && harmless_ok && got != wanted) std::abort();
  return 0;
}
