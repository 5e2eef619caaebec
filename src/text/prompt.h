// From a conversation to the model's prompt: renders the chat template and tokenizes the result so that control tokens
// come from the template alone. What a user typed stays text wherever the template puts it (content, names, tool
// results, arguments, keyword values). How: prompt.cc. Threads: a PromptBuilder is immutable and may be shared. Called
// by tie-cloud-app, the prompt assets tool and `tie render`.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/user_text_marker.h"

namespace tie::text {

struct ChatInput {
  // JSON values; all of it counts as user text. messages: an array of objects in OpenAI's form. tools: an array in
  // OpenAI's form, or empty.
  std::string messages_json;
  std::string tools_json;
  // A JSON object of further template variables (documents, enable_thinking, ...), or empty.
  std::string extra_json;
  bool add_generation_prompt = true;
  // As served: text parts are joined, null content is empty, tool-call arguments given as JSON text become objects (a
  // template that wants the text gets it on a second try). False: the template sees the input as it is.
  bool adapt_messages = true;
  int64_t now_unix_s = 0;  // 0: the present
};

struct Prompt {
  std::string text;  // as rendered; what a person may look at
  std::vector<TokenId> ids;
};

class PromptBuilder {
 public:
  // `tokenizer` must outlive the builder. An empty template means the model has none: a plain ChatML or role-prefix
  // form is used, whichever the vocabulary has tokens for.
  static Result<PromptBuilder> create(const Tokenizer& tokenizer, std::string_view chat_template,
                                      const RenderLimits& limits = {});

  // kBadRequest: malformed input, unknown role, or the template refused the conversation (with its words). kTooLarge: a
  // budget was passed.
  Result<Prompt> build(const ChatInput& input) const;
  // Text alone, as `tie render` prints it.
  Result<std::string> render(const ChatInput& input) const;

 private:
  PromptBuilder(const Tokenizer& tokenizer, ChatTemplate compiled, UserTextMarker marker, std::string source)
      : tokenizer_(&tokenizer),
        template_(std::move(compiled)),
        marker_(std::move(marker)),
        source_(std::move(source)) {}
  const Tokenizer* tokenizer_;
  ChatTemplate template_;
  UserTextMarker marker_;
  std::string source_;
};

// Untrusted plain text (legacy completions): BOS as the model wants it, special tokens not parsed.
Result<std::vector<TokenId>> tokenize_plain(const Tokenizer& tokenizer, std::string_view text);

}  // namespace tie::text
