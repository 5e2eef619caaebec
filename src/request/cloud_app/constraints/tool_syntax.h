// How a model writes tool calls: the form that its chat template shows it, and, for a template that knows no tools, the
// generic form with the words that explain it. Found once per model while warming up. Pure; no limits of its own beyond
// those of the request.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "inference.pb.h"
#include "request/cloud_app/constraints/xml_calls.h"
#include "text/vocab_image.h"

namespace tie::request::app {

enum class ToolStyle {
  kTagged,  // Hermes, Qwen: <tool_call>\n{"name": …, "arguments": …}\n</tool_call>, several in a row
  kObject,  // Llama 3: {"name": …, "parameters": …} from the answer's start, one call only
  kList,    // Mistral up to v7: [TOOL_CALLS] [{"name": …, "arguments": …}, …]
  kNamed,   // Mistral from v11 on: [TOOL_CALLS]name[ARGS]{…}, several in a row; some with [CALL_ID]… before [ARGS]
  kXml,     // Qwen3-Coder, GLM-4: <tool_call> with the arguments one by one (xml_calls.h), several in a row
};

struct ToolSyntax {
  ToolStyle style = ToolStyle::kTagged;
  bool in_template = false;  // false: tool_instructions() has to say it
  std::string open, close;   // markers; close may be empty. kObject: open may be left out by the model
  int32_t open_token = -1;   // when the marker is a control token of the vocabulary
  int32_t close_token = -1;
  std::string arguments_key = "arguments";
  std::string arguments_marker, id_marker;  // kNamed: before the arguments; before the call's id (empty: no ids)
  int32_t arguments_token = -1, id_token = -1;
  XmlForm xml;       // kXml
  bool many = true;  // several calls in one answer
};

// Characters of a call's id in Mistral's forms: letters and digits.
inline constexpr size_t kListCallIdChars = 9;

// The text of a marker that is a control token, which the tokenizer shows as nothing; empty for any other token.
std::string_view marker_text(const ToolSyntax& syntax, int32_t token);

ToolSyntax detect_tool_syntax(std::string_view chat_template, const text::Vocab& vocab);

// In OpenAI's form, as templates read it. Parameters are the user's own text, so that properties keep their order.
std::string tools_json(const v1::InferenceRequest& request);
// For the system message of a template that knows no tools.
std::string tool_instructions(const v1::InferenceRequest& request);
// A call and a result of an earlier turn, as such a template's model is shown them.
std::string written_call(std::string_view name, std::string_view arguments_json);
std::string written_result(std::string_view content);
// Whether tools take part in this request at all.
bool wants_tools(const v1::InferenceRequest& request);
// An id for a new call, in the form that the template wants back.
std::string new_call_id(const ToolSyntax& syntax);

}  // namespace tie::request::app
