#include "request/cloud_app/constraints/tool_syntax.h"

#include <nlohmann/json.hpp>

#include "base/random.h"

namespace tie::request::app {
namespace {

constexpr std::string_view kNoParameters = R"({"type":"object","properties":{}})";

// Protobuf strings are valid UTF-8, so this cannot throw; replace all the same.
std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

int32_t control_token(const text::Vocab& vocab, const std::string& marker) {
  auto id = marker.empty() ? std::nullopt : vocab.find_any(marker);
  return id && vocab.is_control(*id) ? *id : -1;
}

ToolSyntax tagged() {
  return {.style = ToolStyle::kTagged, .open = "<tool_call>", .close = "</tool_call>"};
}

}  // namespace

ToolSyntax detect_tool_syntax(std::string_view chat_template, const text::Vocab& vocab) {
  ToolSyntax out = tagged();
  bool knows_tools = has(chat_template, "tools");
  if (knows_tools && has(chat_template, "[TOOL_CALLS]") && has(chat_template, "[ARGS]")) {
    out = {.style = ToolStyle::kNamed, .in_template = true, .open = "[TOOL_CALLS]", .arguments_marker = "[ARGS]"};
    if (has(chat_template, "[CALL_ID]")) out.id_marker = "[CALL_ID]";
  } else if (knows_tools && has(chat_template, "[TOOL_CALLS]") && !has(chat_template, "[CALL_ID]")) {
    out = {.style = ToolStyle::kList, .in_template = true, .open = "[TOOL_CALLS]"};
  } else if (knows_tools && has(chat_template, "<|python_tag|>") && has(chat_template, "parameters")) {
    out = {.style = ToolStyle::kObject,
           .in_template = true,
           .open = "<|python_tag|>",
           .arguments_key = "parameters",
           .many = false};
  } else if (knows_tools && has(chat_template, "<tool_call>")) {
    out.in_template = true;
    const bool qwen = has(chat_template, "<parameter="), glm = has(chat_template, "<arg_key>");
    if (qwen || glm) {
      out.style = ToolStyle::kXml;
      const bool flat = has(chat_template, "</arg_key><arg_value>");
      out.xml = qwen ? qwen_xml_form() : flat ? flat_glm_xml_form() : glm_xml_form();
    }
  }
  out.open_token = control_token(vocab, out.open);
  out.close_token = control_token(vocab, out.close);
  out.arguments_token = control_token(vocab, out.arguments_marker);
  out.id_token = control_token(vocab, out.id_marker);
  return out;
}

std::string_view marker_text(const ToolSyntax& syntax, int32_t token) {
  if (token < 0) return {};
  if (token == syntax.open_token) return syntax.open;
  if (token == syntax.close_token) return syntax.close;
  if (token == syntax.arguments_token) return syntax.arguments_marker;
  return token == syntax.id_token ? std::string_view(syntax.id_marker) : std::string_view();
}

bool wants_tools(const v1::InferenceRequest& request) {
  return request.tools_size() > 0 && request.tool_choice().kind() != v1::ToolChoice::NONE;
}

std::string tools_json(const v1::InferenceRequest& request) {
  std::string out = "[";
  for (const auto& tool : request.tools()) {
    if (out.size() > 1) out += ", ";
    out += R"({"type": "function", "function": {"name": )" + json_string(tool.name());
    out += R"(, "description": )" + json_string(tool.description());
    out += R"(, "parameters": )";
    out += tool.parameters_json().empty() ? kNoParameters : std::string_view(tool.parameters_json());
    out += "}}";
  }
  return out + "]";
}

std::string tool_instructions(const v1::InferenceRequest& request) {
  std::string out = "You can call these functions. Each is described by a JSON schema, one a line:\n";
  for (const auto& tool : request.tools()) {
    out += R"({"name": )" + json_string(tool.name()) + R"(, "description": )" + json_string(tool.description()) +
           R"(, "parameters": )";
    out += tool.parameters_json().empty() ? kNoParameters : std::string_view(tool.parameters_json());
    out += "}\n";
  }
  out +=
      "To call a function, answer with its name and arguments in this form and nothing after it:\n"
      "<tool_call>\n{\"name\": \"the function's name\", \"arguments\": {\"argument\": \"value\"}}\n</tool_call>\n"
      "When no function helps, answer in words.";
  return out;
}

std::string written_call(std::string_view name, std::string_view arguments_json) {
  std::string out = "<tool_call>\n{\"name\": " + json_string(name) + ", \"arguments\": ";
  out += arguments_json.empty() ? std::string_view("{}") : arguments_json;
  return out + "}\n</tool_call>";
}

std::string written_result(std::string_view content) {
  return "<tool_response>\n" + std::string(content) + "\n</tool_response>";
}

// Mistral's template takes ids of nine letters and digits only; others take any.
std::string new_call_id(const ToolSyntax& syntax) {
  const bool mistral = syntax.style == ToolStyle::kList || syntax.style == ToolStyle::kNamed;
  return mistral ? random_hex(5).substr(0, kListCallIdChars) : "call_" + random_hex(12);
}

}  // namespace tie::request::app
