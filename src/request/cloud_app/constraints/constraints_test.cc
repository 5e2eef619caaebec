#include "request/cloud_app/constraints/constraints.h"

#include <gtest/gtest.h>

#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

using Format = v1::ResponseFormat;

const ToolSyntax kTagged{.style = ToolStyle::kTagged, .open = "<tool_call>", .close = "</tool_call>"};
const ToolSyntax kObject{
    .style = ToolStyle::kObject, .open = "<|python_tag|>", .arguments_key = "parameters", .many = false};
const ToolSyntax kList{.style = ToolStyle::kList, .open = "[TOOL_CALLS]"};
const ToolSyntax kNamed{.style = ToolStyle::kNamed, .open = "[TOOL_CALLS]", .arguments_marker = "[ARGS]"};

v1::InferenceRequest chat() {
  v1::InferenceRequest request;
  request.mutable_conversation()->add_messages()->set_role("user");
  return request;
}

v1::InferenceRequest with_format(Format::Kind kind, const std::string& text = "") {
  auto request = chat();
  request.mutable_response_format()->set_kind(kind);
  request.mutable_response_format()->set_schema_or_grammar(text);
  return request;
}

v1::InferenceRequest with_tools(v1::ToolChoice::Kind kind, const std::string& name = "") {
  auto request = chat();
  request.mutable_tool_choice()->set_kind(kind);
  request.mutable_tool_choice()->set_name(name);
  auto* weather = request.add_tools();
  weather->set_name("weather");
  weather->set_parameters_json(
      R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"],"additionalProperties":false})");
  request.add_tools()->set_name("now");
  return request;
}

struct Lowered {
  Code code = Code::kOk;
  std::string param, message;
  Constraint constraint;
};

Lowered lower(const v1::InferenceRequest& request, const ToolSyntax& syntax = kTagged) {
  auto constraint = lower_constraint(request, syntax);
  if (!constraint) return {constraint.error().code, constraint.error().param, constraint.error().message, {}};
  auto checked = check_constraint(request, *constraint);
  if (!checked) return {checked.error().code, checked.error().param, checked.error().message, {}};
  return {.constraint = std::move(*constraint)};
}

bool takes(const v1::InferenceRequest& request, const std::string& text, const ToolSyntax& syntax = kTagged) {
  Lowered lowered = lower(request, syntax);
  EXPECT_EQ(lowered.code, Code::kOk) << lowered.message;
  auto matched = GrammarChecker::create()->matches(lowered.constraint.checkable, text);
  EXPECT_TRUE(matched.has_value()) << matched.error().message << "\n" << lowered.constraint.checkable;
  return matched && *matched;
}

TEST(Constraints, NoneWhereNothingIsAsked) {
  EXPECT_TRUE(lower(chat()).constraint.grammar.empty());
  auto none = with_tools(v1::ToolChoice::NONE);
  EXPECT_TRUE(lower(none).constraint.grammar.empty());
  EXPECT_EQ(lower(none).constraint.calls, CallsWanted::kNone);
}

// The runtime knows this beginning (rust/edge_grammar/src/free_text.rs) and keeps its masks: it must stay as it is.
TEST(Constraints, TextThatMayBecomeACallBeginsAsTheMasksExpect) {
  for (const auto& [syntax, marker] : {std::pair(kTagged, "<tool_call>"), std::pair(kList, "\\[TOOL_CALLS\\]"),
                                       std::pair(kNamed, "\\[TOOL_CALLS\\]")}) {
    const std::string m = marker, any = "(.|\\n)";
    const std::string head = "start: TEXT? | text_open calls_after_open\ntext_open[lazy]: /" + any + "*" + m +
                             "/\nTEXT: /" + any + "+/ & ~/" + any + "*" + m + any + "*/\n";
    const std::string grammar = lower(with_tools(v1::ToolChoice::AUTO), syntax).constraint.grammar;
    EXPECT_TRUE(grammar.starts_with(head)) << grammar;
    for (std::string_view other : {"\nstart", "\nTEXT", "\ntext_open", "%ignore", "%import"})
      EXPECT_EQ(grammar.find(other, head.size()), std::string::npos) << other;
  }
}

TEST(Constraints, JsonObject) {
  auto request = with_format(Format::JSON_OBJECT);
  EXPECT_TRUE(takes(request, R"({"a": [1, "x"]})"));
  EXPECT_TRUE(takes(request, "{\n  \"a\": 1\n}"));
  EXPECT_FALSE(takes(request, "[1]"));
  EXPECT_FALSE(takes(request, "{"));
}

TEST(Constraints, ASchemaKeepsTheOrderOfItsProperties) {
  auto request = with_format(
      Format::JSON_SCHEMA,
      R"( {"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"string"}},"required":["z","a"],"additionalProperties":false})");
  EXPECT_TRUE(takes(request, R"({"z":1,"a":"x"})"));
  EXPECT_FALSE(takes(request, R"({"a":"x","z":1})"));
  EXPECT_FALSE(takes(request, R"({"z":1})"));
  EXPECT_FALSE(takes(request, R"({"z":1,"a":"x","b":0})"));
  EXPECT_TRUE(takes(with_format(Format::JSON_SCHEMA, "{}"), "[1, null]"));
  EXPECT_TRUE(takes(with_format(Format::JSON_SCHEMA, "true"), "\"x\""));
}

TEST(Constraints, WhatASchemaAsksInVainIsNamed) {
  for (std::string keyword : {R"("unevaluatedProperties":false)", R"("not":{})", R"("if":{})", R"("uniqueItems":true)",
                              R"("propertyNames":{})", R"("dependentRequired":{"a":["b"]})", R"("contains":{})"}) {
    Lowered refused = lower(with_format(Format::JSON_SCHEMA, "{" + keyword + "}"));
    EXPECT_NE(refused.code, Code::kOk) << keyword;
    EXPECT_EQ(refused.param, "guided_json");
    EXPECT_NE(refused.message.find(keyword.substr(1, keyword.find('"', 1) - 1)), std::string::npos) << refused.message;
  }
  EXPECT_EQ(lower(with_format(Format::JSON_SCHEMA, R"({"x-guidance":{"lenient":true}})")).code,
            Code::kUnsupportedFeature);
  EXPECT_EQ(lower(with_format(Format::JSON_SCHEMA, R"({"\u0078-guidance":{"lenient":true}})")).code,
            Code::kUnsupportedFeature);
}

TEST(Constraints, BadSchemasAreRefused) {
  for (std::string schema :
       {"", "{", "[]", "false", "1", R"({"type":"no-such-type"})", R"({"type":"string","pattern":"(("})", "{} {}"})
    EXPECT_EQ(lower(with_format(Format::JSON_SCHEMA, schema)).code, Code::kBadRequest) << schema;
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
  EXPECT_EQ(lower(with_format(Format::JSON_SCHEMA, deep)).code, Code::kBadRequest);
  EXPECT_EQ(lower(with_format(Format::JSON_SCHEMA, "{\"title\":\"" + std::string(kMaxSchemaBytes, 'x') + "\"}")).code,
            Code::kTooLarge);
}

TEST(Constraints, ARegularExpressionMatchesAsAWhole) {
  EXPECT_TRUE(takes(with_format(Format::REGEX, R"(^\d{3}/[a-z]+$)"), "123/ab"));
  EXPECT_FALSE(takes(with_format(Format::REGEX, R"(\d{3}/[a-z]+)"), "123/ab!"));
  EXPECT_TRUE(takes(with_format(Format::REGEX, R"(a\$)"), "a$"));
  EXPECT_TRUE(takes(with_format(Format::REGEX, R"(\\\/"#)"), "\\/\"#"));
  EXPECT_TRUE(takes(with_format(Format::REGEX, "a\nb"), "a\nb"));
  EXPECT_TRUE(takes(with_format(Format::REGEX, "(yes|no)"), "no"));
  for (const std::string& bad : std::vector<std::string>{"((", "[a", "a\\", std::string(60'000, '('), "*"}) {
    Lowered refused = lower(with_format(Format::REGEX, bad));
    EXPECT_EQ(refused.code, Code::kBadRequest) << bad.substr(0, 20);
    EXPECT_EQ(refused.param, "guided_regex");
  }
}

TEST(Constraints, ARegularExpressionCannotLeaveItsPlace) {
  // None of these may become a rule of Lark.
  for (std::string text : {"a/\nstart: \"b\"", "/ | \"b\" | /", "a/i"})
    EXPECT_FALSE(takes(with_format(Format::REGEX, text), "b")) << text;
  EXPECT_FALSE(takes(with_format(Format::REGEX, "a/i"), "A"));
}

TEST(Constraints, Choices) {
  auto request = with_format(Format::CHOICE);
  for (const char* choice : {"yes", "no \"way\"\n", "näh\x7f"}) request.mutable_response_format()->add_choices(choice);
  EXPECT_TRUE(takes(request, "yes"));
  EXPECT_TRUE(takes(request, "no \"way\"\n"));
  EXPECT_TRUE(takes(request, "näh\x7f"));
  EXPECT_FALSE(takes(request, "maybe"));
  EXPECT_FALSE(takes(request, "ye"));
  EXPECT_EQ(lower(with_format(Format::CHOICE)).param, "guided_choice");
}

TEST(Constraints, Lark) {
  EXPECT_TRUE(takes(with_format(Format::LARK, "start: \"a\" b\nb: /[0-9]+/"), "a12"));
  EXPECT_EQ(lower(with_format(Format::LARK, "start: missing")).param, "guided_grammar");
  EXPECT_EQ(lower(with_format(Format::LARK, R"({"grammars":[]})")).code, Code::kBadRequest);
  EXPECT_EQ(lower(with_format(Format::LARK, "start: <|im_start|>")).code, Code::kBadRequest);
  EXPECT_EQ(lower(with_format(Format::LARK, "  ")).code, Code::kBadRequest);
}

const std::string kWeather = R"({"name": "weather", "arguments": {"city": "Oslo"}})";
const std::string kNow = R"({"name": "now", "arguments": {}})";
std::string tagged(const std::string& call) {
  return "<tool_call>\n" + call + "\n</tool_call>";
}

TEST(Constraints, RequiredMeansOneCallOrSeveral) {
  auto request = with_tools(v1::ToolChoice::REQUIRED);
  EXPECT_TRUE(takes(request, tagged(kWeather)));
  EXPECT_TRUE(takes(request, tagged(kNow)));
  EXPECT_TRUE(takes(request, tagged(kNow) + "\n" + tagged(kWeather)));
  EXPECT_TRUE(takes(request, tagged(R"({"name": "weather", "arguments": {"city": "Oslo", "days": 3}})")));
  for (std::string wrong : {R"({"name": "nope", "arguments": {}})", R"({"name": "weather", "arguments": {}})",
                            R"({"name": "weather", "arguments": {"city": 1}})",
                            R"({"name": "weather", "arguments": {"city": "a", "x": 1}})",
                            R"({"name": "now", "arguments": {"a": 1}})", R"({"name": "now"})"})
    EXPECT_FALSE(takes(request, tagged(wrong))) << wrong;
  EXPECT_FALSE(takes(request, "words"));
  EXPECT_FALSE(takes(request, ""));
  request.set_parallel_tool_calls(false);
  EXPECT_TRUE(takes(request, tagged(kNow)));
  EXPECT_FALSE(takes(request, tagged(kNow) + "\n" + tagged(kWeather)));
}

TEST(Constraints, NamedMeansThatOne) {
  auto request = with_tools(v1::ToolChoice::NAMED, "now");
  EXPECT_TRUE(takes(request, tagged(kNow)));
  EXPECT_FALSE(takes(request, tagged(kWeather)));
  EXPECT_EQ(lower(with_tools(v1::ToolChoice::NAMED, "other")).param, "tool_choice");
}

TEST(Constraints, AutoMeansWordsOrCalls) {
  auto request = with_tools(v1::ToolChoice::AUTO);
  EXPECT_TRUE(takes(request, "just words, <b>some</b> <tool\nnew line"));
  EXPECT_TRUE(takes(request, tagged(kNow)));
  EXPECT_TRUE(takes(request, "I look.\n" + tagged(kWeather) + "\n" + tagged(kNow)));
  EXPECT_FALSE(takes(request, tagged(R"({"name": "nope", "arguments": {}})")));
  EXPECT_FALSE(takes(request, "words <tool_call> words"));
  EXPECT_FALSE(takes(request, "words " + tagged(R"({"name": "weather", "arguments": {"city": 1}})")));
}

TEST(Constraints, TheOtherForms) {
  std::string weather = R"({"name": "weather", "parameters": {"city": "Oslo"}})";
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::REQUIRED), weather, kObject));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::REQUIRED), "x" + weather, kObject));
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::AUTO), weather, kObject));
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::AUTO), "words {\"a\": 1}", kObject));
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::AUTO), "{\"a\": 1}", kObject));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::AUTO), R"({"name": "nope", "parameters": {}})", kObject));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::AUTO), R"({ "name" : "weather", "parameters": {"city": 1}})", kObject));
  std::string list = "[TOOL_CALLS] [" + kWeather + ", " + kNow + "]";
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::REQUIRED), list, kList));
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::AUTO), list, kList));
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::AUTO), "[1, 2] words", kList));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::AUTO), "[TOOL_CALLS] [nope]", kList));
}

TEST(Constraints, ControlTokensAreNamedByTheirId) {
  ToolSyntax syntax = kList;
  syntax.open_token = 7;
  auto constraint = lower_constraint(with_tools(v1::ToolChoice::AUTO), syntax);
  EXPECT_NE(constraint->grammar.find("<[7]>"), std::string::npos);
  EXPECT_EQ(constraint->grammar.find("TOOL_CALLS"), std::string::npos);
}

TEST(Constraints, AFormatBesideTools) {
  auto request = with_tools(v1::ToolChoice::AUTO);
  request.mutable_response_format()->set_kind(Format::JSON_OBJECT);
  EXPECT_TRUE(takes(request, R"({"a":1})"));
  EXPECT_TRUE(takes(request, tagged(kNow)));
  EXPECT_FALSE(takes(request, "words"));
  EXPECT_EQ(lower(request, kObject).param, "response_format");
}

TEST(Constraints, TheToolAtFaultIsNamed) {
  auto request = with_tools(v1::ToolChoice::AUTO);
  request.add_tools()->set_name("bad");
  request.mutable_tools(2)->set_parameters_json(R"({"type":"object","unevaluatedProperties":false})");
  EXPECT_EQ(lower(request).param, "tools[2].function.parameters");
  request.mutable_tools(2)->set_parameters_json(R"({"type":"array"})");
  EXPECT_EQ(lower(request).param, "tools[2].function.parameters");
}

TEST(Constraints, CallsByNameInARow) {
  const std::string call = R"([TOOL_CALLS]weather[ARGS]{"city": "x"})", now = "[TOOL_CALLS]now[ARGS]{}";
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::REQUIRED), call + now, kNamed));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::REQUIRED), "words " + call, kNamed));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::REQUIRED), R"([TOOL_CALLS]weather[ARGS]{"city": 1})", kNamed));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::NAMED, "now"), call, kNamed));
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::AUTO), "words", kNamed));
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::AUTO), "words " + call, kNamed));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::AUTO), "[TOOL_CALLS]nope[ARGS]{}", kNamed));
  ToolSyntax with_ids = kNamed;
  with_ids.id_marker = "[CALL_ID]";
  EXPECT_TRUE(takes(with_tools(v1::ToolChoice::REQUIRED), "[TOOL_CALLS]now[CALL_ID]a1B2c3D4e[ARGS]{}", with_ids));
  EXPECT_FALSE(takes(with_tools(v1::ToolChoice::REQUIRED), "[TOOL_CALLS]now[CALL_ID]short[ARGS]{}", with_ids));
}

}  // namespace
}  // namespace tie::request::app
