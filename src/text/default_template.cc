#include "text/default_template.h"

namespace tie::text {
namespace {

constexpr std::string_view kChatMl =
    "{%- for message in messages %}{{ '<|im_start|>' ~ message.role ~ '\n' ~ (message.content or '') ~ '<|im_end|>\n' "
    "}}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}";
constexpr std::string_view kGemma =
    "{{ bos_token }}{%- for message in messages %}"
    "{{ '<start_of_turn>' ~ ('model' if message.role == 'assistant' else 'user') ~ '\n' ~ (message.content or '') | "
    "trim ~ '<end_of_turn>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{%- endif %}";
constexpr std::string_view kLlama3 =
    "{{ bos_token }}{%- for message in messages %}"
    "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ (message.content or '') | trim ~ '<|eot_id|>' "
    "}}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}";
constexpr std::string_view kPlain =
    "{%- for message in messages %}{{ message.role ~ ': ' ~ (message.content or '') ~ '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ 'assistant:' }}{%- endif %}";

bool has_control(const Vocab& vocab, std::string_view text) {
  const auto id = vocab.find_any(text);
  return id && vocab.is_control(*id);
}

}  // namespace

std::string_view default_template(const Vocab& vocab) {
  if (has_control(vocab, "<|im_start|>") && has_control(vocab, "<|im_end|>")) return kChatMl;
  if (has_control(vocab, "<start_of_turn>") && has_control(vocab, "<end_of_turn>")) return kGemma;
  if (has_control(vocab, "<|start_header_id|>") && has_control(vocab, "<|eot_id|>")) return kLlama3;
  return kPlain;
}

}  // namespace tie::text
