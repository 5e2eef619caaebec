// `tie ask` and `tie chat`.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "client/cli/command.h"
#include "client/cli/terminal_answer.h"
#include "client/cli/terminal_text.h"
#include "client/proxy/json_text.h"
#include "client/turn_keys/turn_key_table.h"

namespace tie::cli {
namespace {

constexpr int64_t kNextKeyMs = 10'000;

struct AskOptions {
  NodeFlags node;
  std::string prompt, model, system, prompt_id;
  std::optional<int> max_tokens;
  std::optional<double> temperature;
  std::optional<uint64_t> seed;
  bool json = false, stats = false, no_cache = false;
};

void add_ask_flags(CLI::App& command, AskOptions& o) {
  add_node_flags(command, o.node);
  command.add_option("--model", o.model, "model to ask (default: the node's first)");
  command.add_option("--system", o.system, "system message");
  command.add_option("--prompt-id", o.prompt_id, "a system prompt that is registered on the node")
      ->excludes("--system");
  command.add_option("--max-tokens", o.max_tokens, "end the answer after so many tokens")
      ->check(CLI::Range(1, 1 << 30));
  command.add_option("--temperature", o.temperature, "0 always takes the likeliest token; 2 is wild")
      ->check(CLI::Range(0.0, 2.0));
  command.add_option("--seed", o.seed, "the same seed gives the same answer again");
  command.add_flag("--stats", o.stats, "print token counts and speed after the answer");
}

// What goes into a request is text; a terminal or a file may hold other bytes.
bool is_text(const char* what, const std::string& text) {
  if (client::is_utf8(text)) return true;
  fmt::print(stderr, "tie: {} is not UTF-8 text; `iconv -t UTF-8` turns text of another encoding into it\n", what);
  return false;
}

bool are_texts(const AskOptions& o) {
  return is_text("--model", o.model) && is_text("--system", o.system) && is_text("--prompt-id", o.prompt_id);
}

v1::Message message_of(const std::string& role, const std::string& text) {
  v1::Message message;
  message.set_role(role);
  message.add_parts()->set_text(text);
  return message;
}

v1::InferenceRequest new_request(const AskOptions& o, const std::string& model) {
  v1::InferenceRequest request;
  request.set_model(model);
  request.set_prompt_id(o.prompt_id);
  if (!o.system.empty()) *request.mutable_conversation()->add_messages() = message_of("system", o.system);
  if (o.max_tokens) request.mutable_sampling()->set_max_tokens(*o.max_tokens);
  if (o.temperature) request.mutable_sampling()->set_temperature(float(*o.temperature));
  if (o.seed) request.mutable_sampling()->set_seed(*o.seed);
  request.mutable_conversation();
  request.mutable_sampling();
  return request;
}

int finish(const TerminalAnswer& answer) {
  if (answer.error.code == Code::kOk) return kExitOk;
  if (answer.error.code == Code::kCancelled) {
    fmt::print(stderr, "[cancelled: the answer is not complete]\n");
    return kExitInterrupted;
  }
  int code = report(answer.error);
  return answer.cut ? int(kExitCut) : code;
}

std::string read_prompt(const std::string& given) {
  if (!given.empty() && given != "-") return given;
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

void print_json(const TerminalAnswer& answer, const std::string& model, const client::VerifiedNode& node) {
  nlohmann::json out = {{"model", model},
                        {"text", answer.text},
                        {"finish_reason", answer.finish_reason},
                        {"complete", answer.error.code == Code::kOk},
                        {"verification", node.summary()},
                        {"usage",
                         {{"prompt_tokens", answer.usage.prompt_tokens()},
                          {"completion_tokens", answer.usage.completion_tokens()},
                          {"cached_tokens", answer.usage.cached_tokens()}}},
                        {"first_token_ms", answer.first_token_ms},
                        {"total_ms", answer.total_ms}};
  fmt::print("{}\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

struct Asked {
  std::shared_ptr<client::Session> session;
  std::shared_ptr<const client::VerifiedNode> node;
  std::string model;
};

Result<Asked> open_model(const AskOptions& o) {
  Asked out;
  TIE_TRY(out.session, open_session(o.node));
  TIE_TRY(out.node, out.session->node_with_key(kNextKeyMs, [] {
    fmt::print(stderr, "tie: a key of the node has just died; waiting for the next\n");
  }));
  TIE_TRY(out.model, choose_model(*out.node, o.model));
  return out;
}

int ask(const AskOptions& o) {
  bool nobody_types = !o.prompt.empty() || !::isatty(STDIN_FILENO);
  Interrupts& interrupts = Interrupts::start();
  std::string prompt = nobody_types ? read_prompt(o.prompt) : "";
  if (prompt.find_first_not_of(" \t\r\n") == std::string::npos) {
    fmt::print(stderr, "tie: what is the question? For example: tie ask \"Why is the sky blue?\"\n");
    return kExitUsage;
  }
  if (!are_texts(o) || !is_text("the question", prompt)) return kExitUsage;
  auto asked = open_model(o);
  if (!asked) return report(asked.error());
  auto request = new_request(o, asked->model);
  *request.mutable_conversation()->add_messages() = message_of("user", prompt);
  TerminalAnswer answer = answer_in_terminal(*asked->session, request, interrupts, !o.json);
  if (o.json) {
    print_json(answer, asked->model, *asked->node);
  } else {
    if (!answer.text.ends_with('\n')) fmt::print("\n");
    std::fflush(stdout);
    if (o.stats && answer.error.code == Code::kOk) print_stats(answer);
    if (::isatty(STDERR_FILENO) || o.stats) fmt::print(stderr, "[{}]\n", asked->node->summary());
  }
  return finish(answer);
}

constexpr size_t kLongestShownWord = 40;
constexpr const char* kChatHelp =
    "  /clear   begin a new conversation      /model NAME   ask another model of the node\n"
    "  /keys    how the node was verified     /exit         leave (also Ctrl-D)\n"
    "  Ctrl-C cancels an answer. A line that ends with \\ continues on the next.\n";

class Chat {
 public:
  Chat(const AskOptions& options, Interrupts& interrupts, client::Session& session, std::string model)
      : options_(options),
        interrupts_(interrupts),
        session_(session),
        model_(std::move(model)),
        request_(new_request(options, model_)) {}

  int run() {
    Interrupts::Scope at_prompt(interrupts_, [] {
      fmt::print("\n(Ctrl-C cancels an answer; /exit or Ctrl-D leaves)\n> ");
      std::fflush(stdout);
    });
    std::string line;
    while (read_line(line)) {
      if (line.empty()) continue;
      if (line == "/exit" || line == "/quit" || line == "/bye") break;
      if (line[0] == '/') {
        command(line);
      } else {
        say(line);
      }
    }
    fmt::print("\n");
    return kExitOk;
  }

 private:
  bool read_line(std::string& line) {
    line.clear();
    for (std::string part;; line += part + "\n") {
      if (::isatty(STDIN_FILENO)) fmt::print("{}", line.empty() ? "> " : "… ");
      std::fflush(stdout);
      if (!std::getline(std::cin, part)) return false;
      if (!part.ends_with('\\')) {
        line += part;
        return true;
      }
      part.pop_back();
    }
  }

  void command(const std::string& line) {
    if (line == "/clear") {
      request_ = new_request(options_, model_);
      turn_keys_.forget();
      fmt::print("(a new conversation)\n");
    } else if (line == "/keys") {
      if (auto node = session_.last_node()) fmt::print("{}\n", node->summary());
    } else if (line.starts_with("/model ")) {
      auto node = session_.node();
      auto chosen = node ? choose_model(**node, line.substr(7)) : std::unexpected(node.error());
      if (!chosen) return void(report(chosen.error()));  // names those that exist
      model_ = *chosen;
      request_.set_model(model_);
      fmt::print("(now asking {})\n", model_);
    } else {
      if (line != "/help" && line != "/?")
        fmt::print("There is no command {}. A message that begins with / is sent with a space before it.\n",
                   for_terminal(line.substr(0, line.find(' ')).substr(0, kLongestShownWord)));
      fmt::print("{}", kChatHelp);
    }
  }

  void say(const std::string& text) {
    if (!is_text("the message", text)) return;
    auto& history = *request_.mutable_conversation()->mutable_messages();
    *history.Add() = message_of("user", text);
    request_.clear_turn_key_read();
    request_.clear_turn_key_write();
    request_.clear_turn_key_read_tokens();
    client::Turn turn = options_.no_cache ? client::Turn() : turn_keys_.begin({}, request_);
    TerminalAnswer answer = answer_in_terminal(session_, request_, interrupts_, true);
    fmt::print("\n");
    std::fflush(stdout);
    finish(answer);
    if (answer.error.code != Code::kOk && answer.text.empty()) {
      history.RemoveLast();  // the model never heard it
      if (answer.error.code == Code::kContextExceeded && !history.empty())
        fmt::print(stderr,
                   "  this message was not kept; a shorter one may fit, and /clear begins a new conversation\n");
      return;
    }
    *history.Add() = message_of("assistant", answer.text);
    if (answer.error.code != Code::kOk) return;
    turn.finish(std::span(&*history.rbegin(), 1), answer.usage.prompt_tokens() + answer.usage.completion_tokens());
    if (options_.stats)
      print_stats(answer);
    else if (!options_.no_cache)
      print_cache_use(answer);
  }

  const AskOptions& options_;
  Interrupts& interrupts_;
  client::Session& session_;
  std::string model_;
  v1::InferenceRequest request_;
  client::TurnKeyTable turn_keys_;  // in memory: they end with the chat
};

int chat(const AskOptions& o) {
  if (!are_texts(o)) return kExitUsage;
  Interrupts& interrupts = Interrupts::start();  // before gRPC starts its threads
  auto asked = open_model(o);
  if (!asked) return report(asked.error());
  fmt::print("{} · {} · /help for commands\n", asked->model, asked->node->summary());
  if (asked->node->assurance == "unattested")
    fmt::print(
        "UNATTESTED: the software matches your policy, but no hardware vouches for it (`tie doctor` explains).\n");
  return Chat(o, interrupts, *asked->session, asked->model).run();
}

}  // namespace

void add_ask_commands(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<AskOptions>();
  CLI::App* ask_command = app.add_subcommand("ask", "ask one question and print the answer");
  ask_command->add_option("QUESTION", o->prompt, "the question; - or nothing reads standard input");
  add_ask_flags(*ask_command, *o);
  ask_command->allow_extras();  // words of a question without quotes; the callback says so
  ask_command->add_flag("--json", o->json, "print one JSON object instead of text");
  ask_command->footer(
      "Examples:\n  tie ask \"Why is the sky blue?\" --max-tokens 100\n  tie ask --system \"Answer in French.\" < "
      "letter.txt\n\n" +
      std::string(kExitCodesHelp));
  o->node.token_batch = 0;  // one question: nothing is fetched ahead
  ask_command->callback([o, ask_command, &exit_code] {
    if (std::vector<std::string> more = ask_command->remaining(); !more.empty()) {
      if (more.front().starts_with("-"))
        fmt::print(stderr, "tie: there is no option {}; `tie ask --help` lists them\n", more.front());
      else
        fmt::print(stderr, "tie: '{}' is one word too many: put the question in quotes, \"…\"\n", more.front());
      throw CLI::RuntimeError(kExitUsage);
    }
    exit_code = ask(*o);
  });

  auto c = std::make_shared<AskOptions>();
  CLI::App* chat_command = app.add_subcommand("chat", "talk in the terminal");
  add_ask_flags(*chat_command, *c);
  chat_command->add_flag("--no-cache", c->no_cache, "send no turn keys: the node computes every history again");
  chat_command->footer("In the chat:\n" + std::string(kChatHelp));
  chat_command->callback([c, &exit_code] { exit_code = chat(*c); });
}

}  // namespace tie::cli
