#include "request/cloud_app/constraints/tool_call_splitter.h"

#include <gtest/gtest.h>

#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

const ToolSyntax kTagged{.style = ToolStyle::kTagged, .open = "<tool_call>", .close = "</tool_call>"};
const ToolSyntax kObject{
    .style = ToolStyle::kObject, .open = "<|python_tag|>", .arguments_key = "parameters", .many = false};
const ToolSyntax kList{.style = ToolStyle::kList, .open = "[TOOL_CALLS]"};

struct Seen {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Seen&) const = default;
};

void add(const SplitOutput& out, Seen& seen) {
  seen.text += out.text;
  for (const CallFragment& part : out.calls) {
    if (part.index == static_cast<int>(seen.calls.size())) {
      EXPECT_FALSE(part.id.empty());
      EXPECT_FALSE(part.name.empty());
      seen.calls.emplace_back(part.name, "");
    } else {
      EXPECT_TRUE(part.id.empty() && part.name.empty());
    }
    ASSERT_EQ(part.index, static_cast<int>(seen.calls.size()) - 1);
    seen.calls.back().second += part.arguments;
  }
}

Seen split(const ToolSyntax& syntax, const std::vector<std::string>& pieces,
           CallsWanted wanted = CallsWanted::kPossible) {
  ToolCallSplitter splitter(syntax, {"f", "get_weather"}, wanted);
  Seen seen;
  for (const std::string& piece : pieces) {
    SplitOutput out;
    splitter.push(piece, out);
    add(out, seen);
  }
  SplitOutput out;
  splitter.finish(out);
  add(out, seen);
  return seen;
}

// Whole, in two pieces at every byte, and byte by byte: all the same.
void expect(const ToolSyntax& syntax, const std::string& answer, const Seen& wanted,
            CallsWanted mode = CallsWanted::kPossible) {
  EXPECT_EQ(split(syntax, {answer}, mode), wanted) << answer;
  for (size_t cut = 0; cut <= answer.size(); ++cut)
    EXPECT_EQ(split(syntax, {answer.substr(0, cut), answer.substr(cut)}, mode), wanted) << answer << " cut at " << cut;
  std::vector<std::string> bytes;
  for (char c : answer) bytes.push_back(std::string(1, c));
  EXPECT_EQ(split(syntax, bytes, mode), wanted) << answer << " byte by byte";
}

TEST(ToolCallSplitter, TaggedCallsAmongText) {
  expect(kTagged, "plain <b>text</b> < <tool", {"plain <b>text</b> < <tool", {}});
  expect(kTagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": [1, {}]}}\n</tool_call>",
         {"", {{"f", R"({"a": "}\"{", "b": [1, {}]})"}}});
  expect(kTagged,
         "I call. <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", "
         "\"arguments\": {\"x\": 1}}\n</tool_call>\n",
         {"I call. ", {{"f", "{}"}, {"get_weather", R"({"x": 1})"}}});
  expect(kTagged, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> and so on", {" and so on", {{"f", "{}"}}});
}

TEST(ToolCallSplitter, WhatIsNoCallIsText) {
  for (std::string text :
       {"<tool_call>\nnot json\n</tool_call>", "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 1}", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call><tool_cal", "<tool_call>{\"arguments\": {}, \"name\": \"f\"}"})
    expect(kTagged, text, {text, {}});
  expect(kTagged, "<tool_call>oops <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
         {"<tool_call>oops ", {{"f", "{}"}}});
  std::string endless = "<tool_call>{\"name\": \"" + std::string(kMaxCallHeadBytes * 2, 'x');
  EXPECT_EQ(split(kTagged, {endless, "y"}).text, endless + "y");
}

TEST(ToolCallSplitter, AnAnswerThatIsCutOff) {
  expect(kTagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"xy", {"", {{"f", R"({"a": "xy)"}}});
  expect(kTagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}", {"", {{"f", R"({"a": 1})"}}});
  expect(kTagged, "<tool_call>\n{\"nam", {"<tool_call>\n{\"nam", {}});
  expect(kTagged, "<tool_call>\n{\"nam", {"", {}}, CallsWanted::kOnly);
}

TEST(ToolCallSplitter, AnObjectIsACallOnlyAtTheStart) {
  expect(kObject, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", {"", {{"f", R"({"a": 1})"}}});
  expect(kObject, "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}", {"", {{"f", R"({"a": 1})"}}});
  expect(kObject, "see {\"name\": \"f\", \"parameters\": {\"a\": 1}}",
         {"see {\"name\": \"f\", \"parameters\": {\"a\": 1}}", {}});
  expect(kObject, "{\"a\": 1}", {"{\"a\": 1}", {}});
  expect(kObject, "<|pyth", {"<|pyth", {}});
}

TEST(ToolCallSplitter, AListOfCalls) {
  expect(kList,
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}, {\"name\": \"get_weather\", \"arguments\": "
         "{}}]",
         {"", {{"f", R"({"a": [1, 2]})"}, {"get_weather", "{}"}}});
  expect(kList, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}} words", {" words", {{"f", "{}"}}});
  expect(kList, "[TOOL_CALLS] nothing", {"[TOOL_CALLS] nothing", {}});
  expect(kList, "[1, 2] [TOOL", {"[1, 2] [TOOL", {}});
}

TEST(ToolCallSplitter, NamedCallsInARow) {
  const ToolSyntax named{.style = ToolStyle::kNamed, .open = "[TOOL_CALLS]", .arguments_marker = "[ARGS]"};
  expect(named, "well: [TOOL_CALLS]f[ARGS]{\"a\": \"]}\"}[TOOL_CALLS]get_weather[ARGS]{}",
         {"well: ", {{"f", R"({"a": "]}"})"}, {"get_weather", "{}"}}});
  expect(named, "[TOOL_CALLS]g[ARGS]{}", {"[TOOL_CALLS]g[ARGS]{}", {}});
  expect(named, "[TOOL_CALLS]f[ARGS]1", {"[TOOL_CALLS]f[ARGS]1", {}});
  expect(named, "[TOOL_CALLS]get_wea", {"[TOOL_CALLS]get_wea", {}});
  expect(named, "[TOOL_CALLS]get_wea", {"", {}}, CallsWanted::kOnly);
  ToolSyntax with_ids = named;
  with_ids.id_marker = "[CALL_ID]";
  expect(with_ids, "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{\"a\": 1}", {"", {{"f", R"({"a": 1})"}}});
  expect(with_ids, "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", {"[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", {}});
}

TEST(ToolCallSplitter, HoldsBackNoMoreThanABeginningOfTheMarker) {
  ToolCallSplitter splitter(kTagged, {"f"}, CallsWanted::kPossible);
  SplitOutput out;
  splitter.push("a < b <tool_ca", out);
  EXPECT_EQ(out.text, "a < b ");
  splitter.push("t", out);
  EXPECT_EQ(out.text, "a < b <tool_cat");
}

TEST(ToolCallSplitter, ArgumentsGoOutAsTheyCome) {
  ToolCallSplitter splitter(kTagged, {"f"}, CallsWanted::kPossible);
  SplitOutput out;
  splitter.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"lon", out);
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].arguments, "{\"a\": \"lon");
  SplitOutput next;
  splitter.push("g", next);
  ASSERT_EQ(next.calls.size(), 1u);
  EXPECT_EQ(next.calls[0].arguments, "g");
  EXPECT_TRUE(next.calls[0].name.empty());
}

}  // namespace
}  // namespace tie::request::app
