// How a prompt stays safe: every string of the conversation, the tools and the extra variables is user text. It is
// marked (user_text_marker.h), the template is rendered over the marked values, and the result is tokenized so that a
// control token never spans a mark. Because a template may cut, join or change the text it is given, the control tokens
// of that rendering are compared with those of a second one in which every character that could begin a control token
// is broken; on a difference the second one is used.
#include "text/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>

#include "text/default_template.h"
#include "text/json_guard.h"

namespace tie::text {
namespace {

using Json = nlohmann::ordered_json;
using Strength = UserTextMarker::Strength;

constexpr JsonBounds kJsonBounds{.depth = 100, .members = 1024};
constexpr size_t kMaxMessages = 16384;
constexpr size_t kMaxRoleBytes = 32;

// Roles that templates compare with; they are words of the protocol, not text of a user. Any other role is treated as
// user text.
constexpr std::string_view kRoles[] = {"system",  "developer", "user",        "assistant",     "tool",       "function",
                                       "ipython", "model",     "observation", "tool_response", "environment"};

bool is_known_role(std::string_view role) {
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

Result<Json> parse_json(std::string_view text, const char* what) {
  if (json_is_unwieldy(text, kJsonBounds))
    return fail(Code::kBadRequest, fmt::format("{} is nested too deeply or has an object with too many members", what));
  Json out = Json::parse(text, nullptr, false);
  if (out.is_discarded()) return fail(Code::kBadRequest, fmt::format("{} is not valid JSON", what));
  return out;
}

Result<Json> parse_context(const ChatInput& input) {
  Json context = Json::object();
  if (!input.extra_json.empty()) {
    TIE_TRY(context, parse_json(input.extra_json, "the template variables"));
    if (!context.is_object()) return fail(Code::kBadRequest, "the template variables are not a JSON object");
  }
  TIE_TRY(Json messages, parse_json(input.messages_json, "the conversation"));
  if (!messages.is_array()) return fail(Code::kBadRequest, "the conversation is not a list of messages");
  if (messages.size() > kMaxMessages)
    return fail(Code::kTooLarge, fmt::format("{} messages, the limit is {}", messages.size(), kMaxMessages));
  for (const Json& message : messages) {
    const auto role = message.is_object() ? message.find("role") : message.end();
    if (!message.is_object() || role == message.end() || !role->is_string())
      return fail(Code::kBadRequest, "a message has no role");
    const auto& text = role->get_ref<const std::string&>();
    if (text.empty() || text.size() > kMaxRoleBytes) return fail(Code::kBadRequest, "a message has an impossible role");
  }
  context["messages"] = std::move(messages);
  if (!input.tools_json.empty()) {
    TIE_TRY(Json tools, parse_json(input.tools_json, "the tools"));
    if (!tools.is_array() && !tools.is_null()) return fail(Code::kBadRequest, "the tools are not a list");
    context["tools"] = tools.is_array() && tools.empty() ? Json() : std::move(tools);
  }
  for (const char* key : {"tools", "documents"})
    if (!context.contains(key)) context[key] = nullptr;
  context["add_generation_prompt"] = input.add_generation_prompt;
  return context;
}

// `keep`: what the input says stands (a file for `tie render`); else the vocabulary's tokens replace it, so that they
// can be recognised.
void add_token_texts(const Vocab& vocab, Json& context, bool keep) {
  const std::pair<const char*, std::optional<TokenId>> tokens[] = {
      {"bos_token", vocab.bos()}, {"eos_token", vocab.eos()}, {"unk_token", vocab.unk()}, {"pad_token", vocab.pad()}};
  for (const auto& [name, id] : tokens)
    if (id && !(keep && context.contains(name))) context[name] = std::string(as_text(vocab.token_bytes(*id)));
}

// Text parts alone become one string.
void join_text_parts(Json& content) {
  std::string joined;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
        !part["text"].is_string())
      return;
    if (!joined.empty()) joined += "\n";
    joined += part["text"].get_ref<const std::string&>();
  }
  content = std::move(joined);
}

void open_arguments(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (Json& call : *calls) {
    Json* function =
        call.is_object() && call.contains("function") && call["function"].is_object() ? &call["function"] : nullptr;
    if (!function || !function->contains("arguments") || !(*function)["arguments"].is_string()) continue;
    const auto& text = (*function)["arguments"].get_ref<const std::string&>();
    if (json_is_unwieldy(text, kJsonBounds)) continue;
    Json parsed = Json::parse(text, nullptr, false);
    if (parsed.is_object()) (*function)["arguments"] = std::move(parsed);
  }
}

void fill_null_content(Json& context) {
  for (Json& message : context["messages"])
    if (message.contains("content") ? message["content"].is_null() : message.contains("tool_calls"))
      message["content"] = "";
}

void adapt(Json& context, bool arguments_as_objects) {
  fill_null_content(context);
  for (Json& message : context["messages"]) {
    if (message.contains("content") && message["content"].is_array()) join_text_parts(message["content"]);
    if (arguments_as_objects) open_arguments(message);
  }
}

// Calls `visit` on every string value and key below `node`. Depth is bounded by the parser.
void rewrite_strings(Json& node, const std::function<std::string(const std::string&)>& rewrite) {
  if (node.is_string()) {
    node = rewrite(node.get_ref<const std::string&>());
  } else if (node.is_array()) {
    for (Json& item : node) rewrite_strings(item, rewrite);
  } else if (node.is_object()) {
    Json::object_t out;
    for (auto& [key, value] : node.items()) {
      rewrite_strings(value, rewrite);
      out.emplace_back(rewrite(key), std::move(value));  // marking keeps distinct keys distinct
    }
    node = std::move(out);
  }
}

void rewrite_user_text(Json& context, const std::function<std::string(const std::string&)>& rewrite) {
  for (auto& [key, value] : context.items()) {
    if (key != "messages") {
      rewrite_strings(value, rewrite);
      continue;
    }
    for (Json& message : value) {
      const std::string role = message["role"];
      rewrite_strings(message, rewrite);
      message["role"] = is_known_role(role) ? role : rewrite(role);
    }
  }
}

// Values outside UTF-8 cannot come from protobuf or JSON; whatever else slips in is replaced rather than thrown on.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One conversation on its way through the template.
class Rendering {
 public:
  Rendering(const ChatTemplate& chat_template, const UserTextMarker& marker, const Vocab& vocab, std::string breaker,
            int64_t now)
      : template_(chat_template), marker_(marker), vocab_(vocab), breaker_(std::move(breaker)), now_(now) {}

  Result<std::string> render(const Json& context, Strength strength) {
    Json marked = context;
    check_needed_ = false;
    if (!breaker_.empty()) {
      rewrite_user_text(marked, [&](const std::string& text) {
        check_needed_ = check_needed_ || marker_.needs_check(text);
        return marker_.mark(text, breaker_, strength);
      });
    }
    add_token_texts(vocab_, marked, breaker_.empty());
    return template_.render(dump(marked), now_);
  }
  bool check_needed() const { return check_needed_; }
  const std::string& breaker() const { return breaker_; }

 private:
  const ChatTemplate& template_;
  const UserTextMarker& marker_;
  const Vocab& vocab_;
  std::string breaker_;
  int64_t now_;
  bool check_needed_ = false;
};

// The forms of the conversation to try, most modern first: templates differ in what they can take.
std::vector<Json> forms_of(const Json& context, bool adapt_messages) {
  std::vector<Json> forms;
  if (adapt_messages) {
    forms.push_back(context);
    adapt(forms.back(), true);
    forms.push_back(context);
    adapt(forms.back(), false);
  } else {
    forms.push_back(context);
    forms.push_back(context);
    fill_null_content(forms.back());
  }
  if (forms[1] == forms[0]) forms.pop_back();
  return forms;
}

int64_t now_or(int64_t given) {
  return given != 0 ? given : static_cast<int64_t>(std::time(nullptr));
}

}  // namespace

Result<PromptBuilder> PromptBuilder::create(const Tokenizer& tokenizer, std::string_view chat_template,
                                            const RenderLimits& limits) {
  const std::string_view source = chat_template.empty() ? default_template(tokenizer.vocab()) : chat_template;
  TIE_TRY(ChatTemplate compiled, ChatTemplate::compile(source, limits));
  return PromptBuilder(tokenizer, std::move(compiled), UserTextMarker(tokenizer.vocab(), source), std::string(source));
}

Result<std::string> PromptBuilder::render(const ChatInput& input) const {
  TIE_TRY(const Json context, parse_context(input));
  Rendering rendering(template_, marker_, tokenizer_->vocab(), {}, now_or(input.now_unix_s));
  Result<std::string> text = fail(Code::kInternal, "nothing was rendered");
  for (const Json& form : forms_of(context, input.adapt_messages)) {
    text = rendering.render(form, Strength::kExact);
    if (text || text.error().code != Code::kBadRequest) break;
  }
  return text;
}

Result<Prompt> PromptBuilder::build(const ChatInput& input) const {
  TIE_TRY(const Json context, parse_context(input));
  std::vector<std::string_view> texts{source_, input.messages_json, input.tools_json, input.extra_json};
  const std::string decoded = dump(context);  // JSON escapes undone
  texts.push_back(decoded);
  auto breaker = UserTextMarker::choose_breaker(texts);
  if (!breaker) return fail(Code::kBadRequest, "the conversation uses every Unicode noncharacter");
  Rendering rendering(template_, marker_, tokenizer_->vocab(), std::move(*breaker), now_or(input.now_unix_s));

  std::string marked;
  Result<std::string> text = fail(Code::kInternal, "nothing was rendered");
  for (const Json& form : forms_of(context, input.adapt_messages)) {
    text = rendering.render(form, Strength::kExact);
    if (!text && text.error().code == Code::kBadRequest) continue;
    if (!text) return std::unexpected(std::move(text.error()));
    marked = std::move(*text);
    if (rendering.check_needed()) {
      TIE_TRY(std::string strict, rendering.render(form, Strength::kEverywhere));
      if (tokenizer_->control_tokens_of_marked(strict) != tokenizer_->control_tokens_of_marked(marked))
        marked = std::move(strict);
    }
    Prompt out;
    TIE_TRY(out.ids, tokenizer_->tokenize_marked(marked, rendering.breaker()));
    out.text = without_breakers(marked, rendering.breaker());
    return out;
  }
  return std::unexpected(std::move(text.error()));
}

Result<std::vector<TokenId>> tokenize_plain(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.tokenize(text, {.parse_special = false, .add_special = true});
}

}  // namespace tie::text
