#include "request/cloud_app/constraints/constraints.h"

#include <edge_grammar.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "request/cloud_app/limits.h"
#include "text/json_guard.h"

namespace tie::request::app {
namespace {

using Json = nlohmann::json;
using Format = v1::ResponseFormat;

// White space between the parts of a JSON answer is free but bounded: an unbounded run is a model's favourite way never
// to end.
constexpr std::string_view kAnswerOptions = R"("x-guidance":{"whitespace_pattern":"[ \\n\\r\\t]{1,48}"})";
// Arguments are written as the models were trained to write them.
constexpr std::string_view kArgumentOptions =
    R"("x-guidance":{"whitespace_flexible":false,"item_separator":", ","key_separator":": "})";

std::string format_param(const Format& format) {
  switch (format.kind()) {
    case Format::JSON_SCHEMA:
      return format.name().empty() ? "guided_json" : "response_format";
    case Format::REGEX:
      return "guided_regex";
    case Format::LARK:
      return "guided_grammar";
    case Format::CHOICE:
      return "guided_choice";
    default:
      return "response_format";
  }
}

// A string literal of Lark, which writes them as JSON does.
std::string literal(std::string_view text) {
  std::string out = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  for (size_t at; (at = out.find('\x7f')) != std::string::npos;) out.replace(at, 1, "\\u007f");
  return out;
}

// The schema's own text with the compiler's options put in front, so that properties keep their order.
Checked<std::string> with_options(std::string_view schema, std::string_view options, bool arguments,
                                  const std::string& param) {
  if (schema.size() > kMaxSchemaBytes)
    return refuse(Code::kTooLarge, fmt::format("A JSON schema may have at most {} bytes.", kMaxSchemaBytes), param);
  if (text::json_is_unwieldy(schema, {.depth = kMaxSchemaDepth, .members = kMaxSchemaMembers}))
    return refuse(Code::kBadRequest,
                  fmt::format("A JSON schema may nest at most {} levels with at most {} members each.", kMaxSchemaDepth,
                              kMaxSchemaMembers),
                  param);
  Json parsed = Json::parse(schema, nullptr, false);
  if (parsed.is_discarded()) return refuse(Code::kBadRequest, "The JSON schema is not valid JSON.", param);
  if (parsed.is_boolean() && parsed.get<bool>() && !arguments) return fmt::format("{{{}}}", options);
  if (!parsed.is_object()) return refuse(Code::kBadRequest, "The JSON schema must be a JSON object.", param);
  if (parsed.contains("x-guidance"))
    return refuse(Code::kUnsupportedFeature, "The JSON schema has the unsupported keyword \"x-guidance\".", param);
  std::string head = fmt::format("{{{}", options);
  if (arguments) {
    auto type = parsed.find("type");
    if (type == parsed.end())
      head += R"(,"type":"object")";
    else if (*type != "object")
      return refuse(Code::kBadRequest, "A function's parameters must be a schema of type \"object\".", param);
  }
  std::string_view rest = schema.substr(schema.find('{') + 1);
  if (!parsed.empty()) head += ',';
  return head.append(rest);
}

// Anchors at the ends go without saying: the whole answer has to match.
std::string_view without_anchors(std::string_view regex) {
  if (regex.starts_with('^')) regex.remove_prefix(1);
  if (!regex.ends_with('$')) return regex;
  size_t backslashes = 0;
  while (backslashes + 1 < regex.size() && regex[regex.size() - 2 - backslashes] == '\\') ++backslashes;
  return backslashes % 2 == 0 ? regex.substr(0, regex.size() - 1) : regex;
}

// Between slashes, as Lark wants it.
Checked<std::string> regex_terminal(const Format& format) {
  if (format.schema_or_grammar().size() > kMaxRegexBytes)
    return refuse(Code::kTooLarge, fmt::format("A regular expression may have at most {} bytes.", kMaxRegexBytes),
                  format_param(format));
  std::string_view regex = without_anchors(format.schema_or_grammar());
  if (regex.empty()) return std::string("\"\"");
  std::string out = "/";
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '\\' && i + 1 < regex.size() && regex[i + 1] != '\n') {
      out += regex.substr(i++, 2);
    } else if (regex[i] == '\\') {
      return refuse(Code::kBadRequest, "The regular expression ends with a backslash or escapes a line's end.",
                    format_param(format));
    } else if (regex[i] == '/') {
      out += "\\/";
    } else if (regex[i] == '\n') {
      out += "\\n";
    } else {
      out += regex[i];
    }
  }
  return out + "/";
}

Checked<std::string> choices(const Format& format) {
  if (format.choices().empty() || format.choices_size() > kMaxChoices)
    return refuse(Code::kBadRequest, fmt::format("guided_choice must have 1 to {} entries.", kMaxChoices),
                  "guided_choice");
  std::string out;
  for (const std::string& choice : format.choices()) {
    if (choice.empty()) return refuse(Code::kBadRequest, "An entry of guided_choice is empty.", "guided_choice");
    out += (out.empty() ? "" : " | ") + literal(choice);
  }
  return out;
}

// What a text answer must be, as the right side of a rule of Lark; empty: any text.
Checked<std::string> format_rule(const Format& format) {
  switch (format.kind()) {
    case Format::TEXT:
      return std::string();
    case Format::JSON_OBJECT:
      return fmt::format("%json {{{},\"type\":\"object\"}}", kAnswerOptions);
    case Format::JSON_SCHEMA: {
      TIE_TRY(std::string schema,
              with_options(format.schema_or_grammar(), kAnswerOptions, false, format_param(format)));
      return "%json " + schema;
    }
    case Format::REGEX:
      return regex_terminal(format);
    case Format::CHOICE:
      return choices(format);
    default:
      return refuse(Code::kUnsupportedFeature, "A grammar of your own cannot be combined with tools.",
                    "guided_grammar");
  }
}

Checked<std::string> lark_of_user(const Format& format) {
  const std::string& grammar = format.schema_or_grammar();
  size_t first = grammar.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return refuse(Code::kBadRequest, "guided_grammar is empty.", "guided_grammar");
  if (grammar[first] == '{')
    return refuse(Code::kBadRequest, "guided_grammar must be a Lark grammar.", "guided_grammar");
  return grammar;
}

struct CallBody {
  std::string name, arguments;  // the second as a schema with the compiler's options; kXml: the whole call
};

// The rules for calls. Markers are control tokens where the vocabulary has them as such, unless `spelled`.
class CallRules {
 public:
  CallRules(const ToolSyntax& syntax, bool spelled) : syntax_(syntax), spelled_(spelled) {}

  std::string open() const { return marker(syntax_.open, syntax_.open_token); }
  // A marker of plain text can be mistaken for text; a control token cannot.
  bool open_is_text() const { return spelled_ || syntax_.open_token < 0; }

  // calls: one or more; calls_after_open: the same behind the first marker.
  std::string rules(const std::vector<CallBody>& bodies, bool many) const {
    std::string out = "body: ";
    for (size_t i = 0; i < bodies.size(); ++i) out += fmt::format("{}body{}", i == 0 ? "" : " | ", i);
    out += '\n';
    for (size_t i = 0; i < bodies.size(); ++i) out += fmt::format("body{}: {}\n", i, body(bodies[i]));
    std::string more = many && syntax_.many ? fmt::format("{{0,{}}}", kMaxCallsPerAnswer - 1) : "{0,0}";
    bool several = many && syntax_.many;
    switch (syntax_.style) {
      case ToolStyle::kTagged:
        out += fmt::format("inner: \"\\n\" body \"\\n\" {}\n", marker(syntax_.close, syntax_.close_token));
        out += fmt::format("calls_after_open: inner{}\n", several ? " (\"\\n\" " + open() + " inner)" + more : "");
        out += fmt::format("calls: {} calls_after_open\n", open());
        break;
      case ToolStyle::kList:
        out += fmt::format("calls_after_open: \" \"? \"[\" body{} \"]\"\n", several ? " (\", \" body)" + more : "");
        out += fmt::format("calls: {} calls_after_open\n", open());
        break;
      case ToolStyle::kObject:
        out += "calls: body\n";
        break;
      case ToolStyle::kXml:
        out += xml_text_rule(syntax_.xml);
        out += fmt::format("inner: body {}\n", marker(syntax_.close, syntax_.close_token));
        out += fmt::format("calls_after_open: inner{}\n", several ? " (\"\\n\" " + open() + " inner)" + more : "");
        out += fmt::format("calls: {} calls_after_open\n", open());
        break;
      case ToolStyle::kNamed:
        out += fmt::format("calls_after_open: body{}\n", several ? " (" + open() + " body)" + more : "");
        out += fmt::format("calls: {} calls_after_open\n", open());
        break;
    }
    return out;
  }

  // Text, or text and then calls.
  std::string free_start() const {
    if (syntax_.style == ToolStyle::kObject)
      return fmt::format(
          "start: TEXT? | {}calls\n"
          "TEXT: /(.|\\n)+/ & ~/[ \\t\\r\\n]*(<\\|python_tag\\|>[ \\t\\r\\n]*)?\\{{[ \\t\\r\\n]*\"name\"(.|\\n)*/\n",
          open_is_text() ? "" : open() + "? ");
    if (!open_is_text()) return fmt::format("start: TEXT? ({} calls_after_open)?\nTEXT: /(.|\\n)+/\n", open());
    std::string escaped;
    for (char c : syntax_.open)
      escaped += (std::string_view("[]<>_").find(c) != std::string_view::npos && (c == '[' || c == ']') ? "\\" : "") +
                 std::string(1, c);
    return fmt::format(
        "start: TEXT? | text_open calls_after_open\n"
        "text_open[lazy]: /(.|\\n)*{0}/\n"
        "TEXT: /(.|\\n)+/ & ~/(.|\\n)*{0}(.|\\n)*/\n",
        escaped);
  }

 private:
  // A call's name and arguments.
  std::string body(const CallBody& call) const {
    if (syntax_.style == ToolStyle::kXml) return call.arguments;
    const std::string name = Json(call.name).dump();
    if (syntax_.style != ToolStyle::kNamed)
      return literal("{\"name\": " + name + ", \"" + syntax_.arguments_key + "\": ") + " %json " + call.arguments +
             " \"}\"";
    std::string id;
    if (!syntax_.id_marker.empty())
      id = fmt::format("{} /[a-zA-Z0-9]{{{}}}/ ", marker(syntax_.id_marker, syntax_.id_token), kListCallIdChars);
    return fmt::format("{} {}{} %json {}", literal(call.name), id,
                       marker(syntax_.arguments_marker, syntax_.arguments_token), call.arguments);
  }
  std::string marker(const std::string& text, int32_t token) const {
    return spelled_ || token < 0 ? literal(text) : fmt::format("<[{}]>", token);
  }
  const ToolSyntax& syntax_;
  bool spelled_;
};

Checked<CallBody> call_body(const v1::ToolDefinition& tool, size_t index, const ToolSyntax& syntax) {
  std::string param = fmt::format("tools[{}].function.parameters", index);
  std::string_view schema = tool.parameters_json();
  if (schema.empty()) schema = R"({"type":"object","properties":{},"additionalProperties":false})";
  TIE_TRY(std::string arguments, with_options(schema, kArgumentOptions, true, param));
  if (syntax.style == ToolStyle::kXml) {
    TIE_TRY(arguments, xml_call_body(syntax.xml, tool.name(), schema, kArgumentOptions, param));
  }
  return CallBody{tool.name(), std::move(arguments)};
}

Checked<std::vector<CallBody>> call_bodies(const v1::InferenceRequest& request, const ToolSyntax& syntax) {
  std::vector<CallBody> out;
  bool named = request.tool_choice().kind() == v1::ToolChoice::NAMED;
  for (int i = 0; i < request.tools_size(); ++i) {
    if (named && request.tools(i).name() != request.tool_choice().name()) continue;
    TIE_TRY(CallBody body, call_body(request.tools(i), static_cast<size_t>(i), syntax));
    out.push_back(std::move(body));
  }
  if (out.empty())
    return refuse(Code::kBadRequest, "tool_choice names a function that is not among tools.", "tool_choice");
  return out;
}

Checked<std::string> tools_grammar(const v1::InferenceRequest& request, const ToolSyntax& syntax,
                                   const std::vector<CallBody>& bodies, bool only, bool spelled) {
  CallRules rules(syntax, spelled);
  std::string calls = rules.rules(bodies, !request.has_parallel_tool_calls() || request.parallel_tool_calls());
  if (only) return "start: calls\n" + calls;
  if (request.response_format().kind() == Format::TEXT) return rules.free_start() + calls;
  if (syntax.style == ToolStyle::kObject)
    return refuse(Code::kUnsupportedFeature,
                  "With this model response_format cannot be combined with tools unless a call is required.",
                  format_param(request.response_format()));
  TIE_TRY(std::string format, format_rule(request.response_format()));
  return "start: calls | format\nformat: " + format + "\n" + calls;
}

Error compile_error(int code, const edge_grammar_error& error) {
  return {code == EDGE_GRAMMAR_INTERNAL ? Code::kInternal : Code::kBadRequest, error.text};
}

}  // namespace

Checked<std::string> schema_grammar(std::string_view schema_json, const std::string& param) {
  TIE_TRY(std::string schema, with_options(schema_json, kAnswerOptions, false, param));
  return R"({"grammars":[{"json_schema":)" + schema + "}]}";
}

Checked<Constraint> lower_constraint(const v1::InferenceRequest& request, const ToolSyntax& syntax) {
  Constraint out;
  const Format& format = request.response_format();
  if (wants_tools(request)) {
    bool only = request.tool_choice().kind() != v1::ToolChoice::AUTO;
    TIE_TRY(auto bodies, call_bodies(request, syntax));
    TIE_TRY(out.grammar, tools_grammar(request, syntax, bodies, only, false));
    TIE_TRY(out.checkable, tools_grammar(request, syntax, bodies, only, true));
    out.param = "tools";
    out.calls = only ? CallsWanted::kOnly : CallsWanted::kPossible;
  } else if (format.kind() == Format::LARK) {
    TIE_TRY(out.grammar, lark_of_user(format));
    out.param = format_param(format);
  } else if (format.kind() == Format::JSON_SCHEMA) {
    out.param = format_param(format);
    TIE_TRY(out.grammar, schema_grammar(format.schema_or_grammar(), out.param));
  } else if (format.kind() != Format::TEXT) {
    TIE_TRY(std::string rule, format_rule(format));
    out.grammar = "start: " + rule + "\n";
    out.param = format_param(format);
  }
  if (out.grammar.size() > kMaxGrammarBytes)
    return refuse(Code::kTooLarge,
                  fmt::format("The tools or the format make a grammar of more than {} bytes.", kMaxGrammarBytes),
                  out.param);
  if (out.checkable.empty()) out.checkable = out.grammar;
  return out;
}

void GrammarChecker::Free::operator()(edge_grammar_vocabulary* vocabulary) const {
  edge_grammar_vocabulary_free(vocabulary);
}

Result<GrammarChecker> GrammarChecker::create() {
  constexpr uint32_t kEnd = 256;
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> offsets;
  for (uint32_t i = 0; i <= kEnd; ++i) {
    offsets.push_back(i);
    if (i < kEnd) bytes.push_back(static_cast<uint8_t>(i));
  }
  std::string_view end = "<|end|>";
  bytes.insert(bytes.end(), end.begin(), end.end());
  offsets.push_back(static_cast<uint32_t>(bytes.size()));
  std::vector<uint8_t> control(kEnd + 1, 0);
  control[kEnd] = 1;
  edge_grammar_vocabulary* made = nullptr;
  edge_grammar_error error{};
  int code = edge_grammar_vocabulary_new(bytes.data(), offsets.data(), control.data(), control.size(), &kEnd, 1, &made,
                                         &error);
  if (code != EDGE_GRAMMAR_OK) return std::unexpected(compile_error(code, error));
  GrammarChecker out;
  out.vocabulary_.reset(made);
  return out;
}

Result<void> GrammarChecker::check(std::string_view grammar) const {
  edge_grammar* compiled = nullptr;
  edge_grammar_error error{};
  int code = edge_grammar_compile(vocabulary_.get(), reinterpret_cast<const uint8_t*>(grammar.data()), grammar.size(),
                                  &compiled, &error);
  if (code != EDGE_GRAMMAR_OK) return std::unexpected(compile_error(code, error));
  edge_grammar_free(compiled);
  return {};
}

Result<bool> GrammarChecker::matches(std::string_view grammar, std::string_view text) const {
  edge_grammar* compiled = nullptr;
  edge_grammar_error error{};
  int code = edge_grammar_compile(vocabulary_.get(), reinterpret_cast<const uint8_t*>(grammar.data()), grammar.size(),
                                  &compiled, &error);
  if (code != EDGE_GRAMMAR_OK) return std::unexpected(compile_error(code, error));
  std::unique_ptr<edge_grammar, decltype(&edge_grammar_free)> guard(compiled, edge_grammar_free);
  for (char c : text) {
    uint32_t mask[9] = {};
    uint8_t complete = 0;
    auto token = static_cast<uint8_t>(c);
    code = edge_grammar_fill_mask(compiled, mask, 9, &complete, &error);
    if (code != EDGE_GRAMMAR_OK) return std::unexpected(compile_error(code, error));
    if (complete || !(mask[token / 32] >> (token % 32) & 1)) return false;
    code = edge_grammar_accept(compiled, token, &error);
    if (code != EDGE_GRAMMAR_OK) return std::unexpected(compile_error(code, error));
  }
  return edge_grammar_may_end(compiled) != 0;
}

Checked<void> check_constraint(const v1::InferenceRequest& request, const Constraint& constraint) {
  if (constraint.grammar.empty()) return {};
  TIE_TRY(GrammarChecker checker, GrammarChecker::create());
  auto checked = checker.check(constraint.checkable);
  if (checked) return {};
  if (!wants_tools(request)) return refuse(std::move(checked.error()), constraint.param);
  for (int i = 0; i < request.tools_size(); ++i) {
    if (request.tools(i).parameters_json().empty()) continue;
    std::string param = fmt::format("tools[{}].function.parameters", i);
    TIE_TRY(std::string alone, with_options(request.tools(i).parameters_json(), kArgumentOptions, true, param));
    auto one = checker.check("start: %json " + alone + "\n");
    if (!one) return refuse(std::move(one.error()), param);
  }
  return refuse(std::move(checked.error()), constraint.param);
}

}  // namespace tie::request::app
