#include "client/cli/text_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "os/fd.h"
#include "os/memfd.h"
#include "text/detokenizer.h"
#include "text/model_assets.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace tie::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxInputBytes = size_t{256} << 20;
constexpr size_t kMaxVocabFileBytes = size_t{256} << 20;

struct TextOptions {
  std::string gguf, json, config, image, chat_template;
  bool special = false, bos = false, skip_special = false, ids = false, as_served = false;
  int64_t now = 0;
};

ByteView view(const os::Mapping& file) {
  return {reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size()};
}

Result<std::string> read_standard_input() {
  std::string out;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("reading standard input", errno);
    if (n == 0) return out;
    out.append(buffer, static_cast<size_t>(n));
    if (out.size() > kMaxInputBytes) return fail(Code::kTooLarge, "standard input is too large");
  }
}

struct OpenText {
  Bytes image;
  os::Mapping mapped;
  std::unique_ptr<text::Vocab> vocab;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::string chat_template;
};

Result<void> open_image(ByteView image, OpenText& out) {
  TIE_TRY(auto vocab, text::Vocab::open(image));
  out.vocab = std::make_unique<text::Vocab>(std::move(vocab));
  TIE_TRY(auto tokenizer, text::Tokenizer::create(*out.vocab));
  out.tokenizer = std::make_unique<text::Tokenizer>(std::move(tokenizer));
  return {};
}

// tokenizer_config.json may carry the chat template that a tokenizer.json lacks.
std::string template_of_config(std::string_view config) {
  const Json parsed = Json::parse(config, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("chat_template")) return {};
  const Json& found = parsed["chat_template"];
  if (found.is_string()) return found.get<std::string>();
  if (!found.is_array()) return {};
  for (const Json& one : found)
    if (one.is_object() && one.value("name", Json()) == "default" && one.contains("template") &&
        one["template"].is_string())
      return one["template"].get<std::string>();
  return {};
}

Result<OpenText> open_vocabulary(const TextOptions& o) {
  const int given = !o.gguf.empty() + !o.json.empty() + !o.image.empty();
  if (given != 1) return fail(Code::kBadRequest, "give one of --gguf FILE, --json FILE, --image FILE");
  OpenText out;
  if (!o.image.empty()) {
    TIE_TRY(out.mapped, os::Mapping::file_read_only(o.image));
    TIE_CHECK_OK(open_image(view(out.mapped), out));
    TIE_CHECK_OK(out.vocab->verify_digest());
    return out;
  }
  if (!o.gguf.empty()) {
    TIE_TRY(text::ModelAssets assets, text::compile_model_assets(o.gguf));
    out.image = std::move(assets.tokenizer_image);
    out.chat_template = std::move(assets.chat_template);
  } else {
    TIE_TRY(const Bytes json, os::read_file(o.json, kMaxVocabFileBytes));
    Bytes config;
    if (!o.config.empty()) {
      TIE_TRY(config, os::read_file(o.config, kMaxVocabFileBytes));
    }
    TIE_TRY(out.image, text::compile_vocab_image_from_json(as_text(json), as_text(config)));
    out.chat_template = template_of_config(as_text(config));
  }
  TIE_CHECK_OK(open_image(out.image, out));
  return out;
}

void print_ids(const std::vector<text::TokenId>& ids) {
  std::string line;
  for (text::TokenId id : ids) fmt::format_to(std::back_inserter(line), "{}{}", line.empty() ? "" : " ", id);
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
}

Result<void> tokenize(const TextOptions& o) {
  TIE_TRY(const OpenText open, open_vocabulary(o));
  TIE_TRY(const std::string text, read_standard_input());
  TIE_TRY(const auto ids, open.tokenizer->tokenize(text, {.parse_special = o.special, .add_special = o.bos}));
  print_ids(ids);
  return {};
}

Result<std::vector<text::TokenId>> parse_ids(std::string_view text) {
  std::vector<text::TokenId> ids;
  for (size_t at = 0; at < text.size();) {
    if (text.find_first_of(" \t\r\n,[]", at) == at) {
      ++at;
      continue;
    }
    const size_t end = std::min(text.find_first_of(" \t\r\n,[]", at), text.size());
    const std::string item(text.substr(at, end - at));
    char* rest = nullptr;
    const long value = std::strtol(item.c_str(), &rest, 10);
    if (*rest != 0 || value < 0 || value > INT32_MAX)
      return fail(Code::kBadRequest, fmt::format("\"{}\" is not a token id", item.substr(0, 40)));
    ids.push_back(static_cast<text::TokenId>(value));
    at = end;
  }
  return ids;
}

Result<void> detokenize(const TextOptions& o) {
  TIE_TRY(const OpenText open, open_vocabulary(o));
  TIE_TRY(const std::string input, read_standard_input());
  TIE_TRY(const auto ids, parse_ids(input));
  for (text::TokenId id : ids)
    if (static_cast<uint32_t>(id) >= open.vocab->size())
      return fail(Code::kBadRequest,
                  fmt::format("token id {} is outside the vocabulary of {}", id, open.vocab->size()));
  const std::string text = text::detokenize(*open.vocab, ids, {.show_control = !o.skip_special, .at_start = true});
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

// A list of messages, or an object with messages, tools, add_generation_prompt and further template variables.
Result<text::ChatInput> parse_input(std::string_view input) {
  Json parsed = Json::parse(input, nullptr, false);
  text::ChatInput out;
  if (parsed.is_array()) {
    out.messages_json = parsed.dump();
    return out;
  }
  if (!parsed.is_object() || !parsed.contains("messages"))
    return fail(Code::kBadRequest, "expected a JSON list of messages, or an object with \"messages\"");
  out.messages_json = parsed["messages"].dump();
  if (parsed.contains("tools")) out.tools_json = parsed["tools"].dump();
  if (parsed.contains("add_generation_prompt") && parsed["add_generation_prompt"].is_boolean())
    out.add_generation_prompt = parsed["add_generation_prompt"];
  for (const char* known : {"messages", "tools", "add_generation_prompt"}) parsed.erase(known);
  out.extra_json = parsed.dump();
  return out;
}

Result<void> render(const TextOptions& o) {
  TIE_TRY(const std::string input, read_standard_input());
  if (input.size() > (size_t{32} << 20)) return fail(Code::kTooLarge, "the conversation is too large");
  TIE_TRY(text::ChatInput chat, parse_input(input));
  chat.now_unix_s = o.now;
  chat.adapt_messages = o.as_served;
  TIE_TRY(OpenText open, open_vocabulary(o));
  if (!o.chat_template.empty()) {
    TIE_TRY(const Bytes given, os::read_file(o.chat_template, 4 << 20));
    open.chat_template = std::string(as_text(given));
  }
  TIE_TRY(const auto prompts, text::PromptBuilder::create(*open.tokenizer, open.chat_template));
  if (o.ids) {
    TIE_TRY(const text::Prompt prompt, prompts.build(chat));
    print_ids(prompt.ids);
    return {};
  }
  TIE_TRY(const std::string text, prompts.render(chat));
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

void add_vocabulary(CLI::App& command, TextOptions& o) {
  command.add_option("--gguf", o.gguf, "GGUF file (its metadata is enough)");
  command.add_option("--json", o.json, "Hugging Face tokenizer.json");
  command.add_option("--config", o.config, "tokenizer_config.json beside it (BOS, EOS, chat template)");
  command.add_option("--image", o.image, "compiled vocabulary image (tokenizer.img)");
}

void on_run(CLI::App& command, std::shared_ptr<TextOptions> o, Result<void> (*action)(const TextOptions&)) {
  command.callback([o, action] {
    if (auto done = action(*o); !done) {
      fmt::print(stderr, "{}\n", done.error().message);
      throw CLI::RuntimeError(1);
    }
  });
}

}  // namespace

void add_text_commands(CLI::App& app) {
  auto o = std::make_shared<TextOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "token ids of the text on standard input, on one line");
  add_vocabulary(*command, *o);
  command->add_flag("--special", o->special, "recognise text such as <|im_end|> as the control token it spells");
  command->add_flag("--bos", o->bos, "add BOS and EOS as the model wants them");
  on_run(*command, o, tokenize);

  o = std::make_shared<TextOptions>();
  command = app.add_subcommand("detokenize", "text of the token ids on standard input");
  add_vocabulary(*command, *o);
  command->add_flag("--skip-special", o->skip_special, "leave control tokens out");
  on_run(*command, o, detokenize);

  o = std::make_shared<TextOptions>();
  command = app.add_subcommand("render", "the prompt of the conversation (JSON) on standard input");
  add_vocabulary(*command, *o);
  command->add_option("--template", o->chat_template, "chat template file instead of the model's own");
  command->add_flag("--ids", o->ids, "print the prompt's token ids, as the node computes them");
  command->add_flag("--as-served", o->as_served,
                    "adapt the messages as the node does (join text parts, open tool-call arguments)");
  command->add_option("--now", o->now, "clock for the template, seconds since 1970 (default: the present)");
  on_run(*command, o, render);
}

}  // namespace tie::cli
