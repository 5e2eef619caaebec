// Tools and response formats: what constrains an answer. The node lowers them; a feature that it does not have it
// refuses by name.
#include <fmt/format.h>

#include "client/proxy/limits.h"
#include "client/proxy/openai_parts.h"

namespace tie::client {
namespace {

constexpr size_t kMaxNameBytes = 256;

bool is_function_name(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  for (char c : name) {
    bool fine =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
    if (!fine) return false;
  }
  return true;
}

void read_tool(FieldReader& body, const nlohmann::json& value, size_t index, v1::ToolDefinition& out) {
  FieldReader tool(value, fmt::format("tools[{}]", index));
  std::string type = tool.text("type").value_or("");
  if (type != "function") {
    tool.fail_with({Code::kUnsupportedFeature,
                    fmt::format("'{}' must be function; this node runs no other tools.", tool.path_of("type")),
                    tool.path_of("type"), "unsupported_value", 0});
  }
  const auto* function = tool.object("function");
  if (!function) {
    tool.fail_on("function", fmt::format("'{}' is missing.", tool.path_of("function")));
  } else {
    FieldReader inner(*function, tool.path_of("function"));
    out.set_name(inner.text("name").value_or(""));
    if (!is_function_name(out.name())) {
      inner.fail_on("name", fmt::format("'{}' must have 1 to {} letters, digits, dots, dashes or underscores.",
                                        inner.path_of("name"), kMaxNameBytes));
    }
    out.set_description(inner.text("description").value_or(""));
    if (const auto* schema = inner.object("parameters")) out.set_parameters_json(schema->dump());
    out.set_strict(inner.boolean("strict").value_or(false));
    inner.refuse_unknown();
    tool.adopt(inner);
  }
  tool.refuse_unknown();
  body.adopt(tool);
}

void read_named_choice(FieldReader& body, const nlohmann::json& value, v1::ToolChoice& out) {
  FieldReader choice(value, "tool_choice");
  std::string type = choice.text("type").value_or("");
  if (type != "function") {
    choice.fail_with(
        {Code::kUnsupportedFeature, "'tool_choice.type' must be function.", "tool_choice", "unsupported_value", 0});
  } else if (const auto* function = choice.object("function")) {
    FieldReader inner(*function, "tool_choice.function");
    out.set_kind(v1::ToolChoice::NAMED);
    out.set_name(inner.text("name").value_or(""));
    if (out.name().empty()) inner.fail_on("name", "'tool_choice.function.name' is missing.");
    choice.adopt(inner);
  } else {
    choice.fail_on("function", "'tool_choice.function' is missing.");
  }
  body.adopt(choice);
}

void read_tool_choice(FieldReader& body, v1::InferenceRequest& out) {
  const auto* value = body.any("tool_choice");
  if (!value) return;
  v1::ToolChoice& choice = *out.mutable_tool_choice();
  if (value->is_object()) {
    read_named_choice(body, *value, choice);
  } else {
    std::string word = value->is_string() ? value->get<std::string>() : "";
    if (word == "auto")
      choice.set_kind(v1::ToolChoice::AUTO);
    else if (word == "none")
      choice.set_kind(v1::ToolChoice::NONE);
    else if (word == "required")
      choice.set_kind(v1::ToolChoice::REQUIRED);
    else
      return body.fail_on("tool_choice", "'tool_choice' must be none, auto, required or name a function.");
  }
  bool needs_tools = choice.kind() == v1::ToolChoice::REQUIRED || choice.kind() == v1::ToolChoice::NAMED;
  if (needs_tools && out.tools_size() == 0)
    return body.fail_on("tool_choice", "'tool_choice' is only allowed when 'tools' are given.");
  if (choice.kind() != v1::ToolChoice::NAMED) return;
  for (const auto& tool : out.tools()) {
    if (tool.name() == choice.name()) return;
  }
  body.fail_on("tool_choice", "'tool_choice' names a function that is not among 'tools'.");
}

void read_json_schema(FieldReader& format, v1::ResponseFormat& out) {
  const auto* value = format.object("json_schema");
  if (!value) return format.fail_on("json_schema", "'response_format.json_schema' is missing.");
  FieldReader inner(*value, "response_format.json_schema");
  out.set_name(inner.text("name").value_or(""));
  if (out.name().empty()) inner.fail_on("name", "'response_format.json_schema.name' is missing.");
  inner.ignore({"description"});
  const auto* schema = inner.any("schema");
  out.set_schema_or_grammar(schema ? schema->dump() : "{}");
  out.set_strict(inner.boolean("strict").value_or(false));
  inner.refuse_unknown();
  format.adopt(inner);
}

void read_format(FieldReader& body, const nlohmann::json& value, v1::InferenceRequest& request) {
  FieldReader format(value, "response_format");
  std::string type = format.text("type").value_or("");
  if (type == "json_object") {
    request.mutable_response_format()->set_kind(v1::ResponseFormat::JSON_OBJECT);
  } else if (type == "json_schema") {
    request.mutable_response_format()->set_kind(v1::ResponseFormat::JSON_SCHEMA);
    read_json_schema(format, *request.mutable_response_format());
  } else if (type != "text") {
    format.fail_on("type", "'response_format.type' must be text, json_object or json_schema.");
  }
  format.refuse_unknown();
  body.adopt(format);
}

struct Guide {
  const char* field;
  v1::ResponseFormat::Kind kind;
};
constexpr Guide kGuides[] = {{"json", v1::ResponseFormat::JSON_SCHEMA},
                             {"regex", v1::ResponseFormat::REGEX},
                             {"grammar", v1::ResponseFormat::LARK},
                             {"choice", v1::ResponseFormat::CHOICE}};

void read_choices(FieldReader& reader, const std::string& name, v1::ResponseFormat& out) {
  const auto* values = reader.array(name, kMaxChoices);
  if (!values || values->empty())
    return reader.fail_on(name, fmt::format("'{}' must be a list of at least one string.", reader.path_of(name)));
  for (const auto& value : *values) {
    if (!value.is_string())
      return reader.fail_on(name, fmt::format("'{}' must be a list of strings.", reader.path_of(name)));
    out.add_choices(value.get<std::string>());
  }
}

// The extensions guided_json, guided_regex, … and their newer form structured_outputs.{json, regex, …}.
void read_guides(FieldReader& reader, const std::string& prefix, v1::InferenceRequest& request) {
  for (const Guide& guide : kGuides) {
    std::string name = prefix + guide.field;
    const auto* value = reader.any(name);
    if (!value) continue;
    if (request.has_response_format()) {
      return reader.fail_on(name,
                            fmt::format("'{}' cannot be combined with another response format.", reader.path_of(name)));
    }
    v1::ResponseFormat& format = *request.mutable_response_format();
    format.set_kind(guide.kind);
    if (guide.kind == v1::ResponseFormat::CHOICE) {
      read_choices(reader, name, format);
    } else if (guide.kind == v1::ResponseFormat::JSON_SCHEMA && !value->is_string()) {
      format.set_schema_or_grammar(value->dump());
    } else {
      format.set_schema_or_grammar(reader.text(name).value_or(""));
    }
  }
}

}  // namespace

void read_tools(FieldReader& body, v1::InferenceRequest& out) {
  if (const auto* tools = body.array("tools", kMaxTools)) {
    for (size_t i = 0; i < tools->size() && !body.failed(); ++i) read_tool(body, (*tools)[i], i, *out.add_tools());
  }
  read_tool_choice(body, out);
  if (auto parallel = body.boolean("parallel_tool_calls")) out.set_parallel_tool_calls(*parallel);
}

void read_response_format(FieldReader& body, v1::InferenceRequest& out, bool chat) {
  if (const auto* format = chat ? body.object("response_format") : nullptr) read_format(body, *format, out);
  read_guides(body, "guided_", out);
  if (const auto* outputs = body.object("structured_outputs")) {
    FieldReader inner(*outputs, "structured_outputs");
    read_guides(inner, "", out);
    inner.refuse_unknown();
    body.adopt(inner);
  }
}

}  // namespace tie::client
