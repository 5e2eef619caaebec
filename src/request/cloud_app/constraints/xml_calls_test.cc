// Calls with their arguments between markers: which texts the grammar takes, what they become, what is refused.
#include "request/cloud_app/constraints/xml_calls.h"

#include <gtest/gtest.h>

#include "request/cloud_app/constraints/constraints.h"
#include "request/cloud_app/constraints/tool_call_splitter.h"

namespace tie::request::app {
namespace {

ToolSyntax qwen() {
  return {.style = ToolStyle::kXml,
          .in_template = true,
          .open = "<tool_call>",
          .close = "</tool_call>",
          .xml = qwen_xml_form()};
}
ToolSyntax glm() {
  ToolSyntax out = qwen();
  out.xml = glm_xml_form();
  return out;
}

v1::InferenceRequest request_with(const std::string& schema, v1::ToolChoice::Kind kind = v1::ToolChoice::REQUIRED) {
  v1::InferenceRequest request;
  request.mutable_conversation()->add_messages()->set_role("user");
  request.mutable_tool_choice()->set_kind(kind);
  auto* tool = request.add_tools();
  tool->set_name("weather");
  tool->set_parameters_json(schema);
  request.add_tools()->set_name("now");
  return request;
}

const std::string kSchema =
    R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1},"unit":{"type":"string","enum":["C","F"]}},"required":["city","days"]})";
const std::string kQwenCall =
    "<tool_call>\n<function=weather>\n<parameter=city>\nParis \"1\"\n< "
    "2\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>";
const std::string kGlmCall =
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</"
    "arg_value>\n"
    "</tool_call>";

bool takes(const v1::InferenceRequest& request, const std::string& text, const ToolSyntax& syntax) {
  auto constraint = lower_constraint(request, syntax);
  EXPECT_TRUE(constraint) << constraint.error().message;
  auto matched = GrammarChecker::create()->matches(constraint->checkable, text);
  EXPECT_TRUE(matched) << matched.error().message << "\n" << constraint->checkable;
  return matched && *matched;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(XmlCalls, AreTakenWhenTheyKeepToTheSchema) {
  const auto request = request_with(kSchema);
  EXPECT_TRUE(takes(request, kQwenCall, qwen()));
  EXPECT_TRUE(takes(request, kQwenCall + "\n<tool_call>\n<function=now>\n</function>\n</tool_call>", qwen()));
  EXPECT_FALSE(takes(request, replaced(kQwenCall, "\n3\n", "\nthree\n"), qwen()));
  EXPECT_FALSE(takes(request, replaced(kQwenCall, "\n3\n", "\n0\n"), qwen()));
  EXPECT_FALSE(takes(request, replaced(kQwenCall, "weather", "nope"), qwen()));
  EXPECT_FALSE(takes(request, replaced(kQwenCall, "days", "weeks"), qwen()));
  EXPECT_FALSE(takes(request, "words " + kQwenCall, qwen()));
  EXPECT_TRUE(takes(request_with(kSchema, v1::ToolChoice::AUTO), "words " + kQwenCall, qwen()));
  EXPECT_TRUE(takes(request_with(kSchema, v1::ToolChoice::AUTO), "words", qwen()));
  EXPECT_TRUE(takes(request, kGlmCall, glm()));
  const std::string unit = "<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</tool_call>";
  EXPECT_TRUE(takes(request, replaced(kGlmCall, "</tool_call>", unit), glm()));
  EXPECT_FALSE(takes(request, replaced(kGlmCall, "</tool_call>", replaced(unit, "C<", "K<")), glm()));
}

TEST(XmlCalls, LengthsOfRawTextsAreKept) {
  const auto request = request_with(
      R"({"type":"object","properties":{"city":{"type":"string","minLength":2,"maxLength":3}},"required":["city"]})");
  const auto call = [](const std::string& value) {
    return "<tool_call>\n<function=weather>\n<parameter=city>\n" + value + "\n</parameter>\n</function>\n</tool_call>";
  };
  for (const char* good : {"ab", "abc", "\xc3\xa4\xc3\xb6"}) EXPECT_TRUE(takes(request, call(good), qwen())) << good;
  for (const char* bad : {"", "a", "abcd"}) EXPECT_FALSE(takes(request, call(bad), qwen())) << bad;
}

TEST(XmlCalls, WhatTheFormCannotKeepIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"object","properties":{"a":{"type":"string","pattern":"^x"}}})", "pattern"},
      {R"({"type":"object","properties":{"a":{"type":"string","format":"date"}}})", "format"},
      {R"({"type":"object","properties":{"a":{"type":"string","enum":["x"],"maxLength":3}}})", "enum"},
      {R"({"type":"object","properties":{},"minProperties":1})", "minProperties"},
      {R"({"type":"object","anyOf":[{}]})", "anyOf"},
      {R"({"type":"object","properties":{},"required":["a"]})", "required"}};
  for (const auto& [schema, keyword] : cases) {
    const auto lowered = lower_constraint(request_with(schema), qwen());
    ASSERT_FALSE(lowered) << schema;
    EXPECT_EQ(lowered.error().param, "tools[0].function.parameters");
    EXPECT_NE(lowered.error().message.find(keyword), std::string::npos) << lowered.error().message;
  }
}

struct Seen {
  std::string text, name, arguments;
};

Seen split(const ToolSyntax& syntax, const std::string& answer, size_t piece) {
  const auto request = request_with(kSchema);
  ToolCallSplitter splitter(syntax, {"weather", "now"}, CallsWanted::kPossible);
  splitter.set_text_parameters(text_parameters(request));
  SplitOutput out;
  for (size_t at = 0; at < answer.size(); at += piece) splitter.push(answer.substr(at, piece), out);
  splitter.finish(out);
  Seen seen{out.text, "", ""};
  for (const CallFragment& part : out.calls) seen.name += part.name, seen.arguments += part.arguments;
  return seen;
}

TEST(XmlCalls, BecomeJsonWhereverTheyAreCut) {
  for (size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
    Seen seen = split(qwen(), "I look. " + kQwenCall, piece);
    EXPECT_EQ(seen.text, "I look. ");
    EXPECT_EQ(seen.name, "weather");
    EXPECT_EQ(seen.arguments, R"({"city": "Paris \"1\"\n< 2", "days": 3})");
    seen = split(glm(), kGlmCall, piece);
    EXPECT_EQ(seen.arguments, R"({"city": "Paris", "days": 3})");
    EXPECT_EQ(split(qwen(), "<tool_call>\n<function=nope>\n", piece).text, "<tool_call>\n<function=nope>\n");
    ToolSyntax flat = glm();
    flat.xml = flat_glm_xml_form();
    seen = split(flat, "<tool_call>weather<arg_key>city</arg_key><arg_value>a</arg_value></tool_call>", piece);
    EXPECT_EQ(seen.name + seen.arguments, R"(weather{"city": "a"})");
    EXPECT_EQ(split(glm(), "<tool_call>now\n</tool_call>", piece).arguments, "{}");
    EXPECT_EQ(split(qwen(), kQwenCall.substr(0, kQwenCall.find("\n< 2") + 4), piece).arguments,
              R"({"city": "Paris \"1\"\n< 2)");
  }
}

}  // namespace
}  // namespace tie::request::app
