// The "messages" of a chat request.
#include <fmt/format.h>

#include "client/proxy/base64.h"
#include "client/proxy/limits.h"
#include "client/proxy/openai_parts.h"

namespace tie::client {
namespace {

constexpr size_t kMaxParts = 1024;
constexpr size_t kMaxToolCalls = 256;

void read_image(FieldReader& part, v1::ContentPart& out) {
  const auto* value = part.object("image_url");
  if (!value)
    return part.fail_on("image_url", fmt::format("'{}' must be an object with a url.", part.path_of("image_url")));
  FieldReader image(*value, part.path_of("image_url"));
  image.ignore({"detail"});
  std::string url = image.text("url").value_or("");
  image.refuse_unknown();
  part.adopt(image);
  size_t comma = url.find(',');
  if (!url.starts_with("data:") || comma == std::string::npos || !url.substr(0, comma).ends_with(";base64")) {
    part.fail_on("image_url", fmt::format("'{}' must be a data: URL with base64 content; this node fetches nothing.",
                                          part.path_of("image_url.url")));
    return;
  }
  auto bytes = from_base64(std::string_view(url).substr(comma + 1));
  if (!bytes) return part.fail_on("image_url", fmt::format("'{}' is not valid base64.", part.path_of("image_url.url")));
  out.set_image(std::move(*bytes));
}

void read_part(FieldReader& message, const nlohmann::json& value, const std::string& path, v1::Message& out) {
  FieldReader part(value, path);
  std::string type = part.text("type").value_or("");
  if (type == "text" || type == "refusal") {
    auto text = part.text(type);
    if (!text) part.fail_on(type, fmt::format("'{}' must be a string.", part.path_of(type)));
    out.add_parts()->set_text(text.value_or(""));
  } else if (type == "image_url") {
    read_image(part, *out.add_parts());
  } else if (type == "input_audio" || type == "file") {
    part.fail_with({Code::kUnsupportedFeature, fmt::format("Content of type '{}' is not supported by this node.", type),
                    part.path_of("type"), "unsupported_content", 0});
  } else {
    part.fail_on("type", fmt::format("'{}' must be one of text, image_url, refusal.", part.path_of("type")));
  }
  part.ignore({"prompt_cache_breakpoint", "cache_control"});
  part.refuse_unknown();
  message.adopt(part);
}

void read_content(FieldReader& message, v1::Message& out) {
  const auto* content = message.any("content");
  if (!content) {
    out.set_content_is_null(true);
    if (out.role() != "assistant")
      message.fail_on("content",
                      fmt::format("'{}' must be a string or an array of parts.", message.path_of("content")));
    return;
  }
  if (content->is_string()) {
    out.add_parts()->set_text(content->get<std::string>());
    return;
  }
  const auto* parts = message.array("content", kMaxParts);
  if (!parts) return;
  for (size_t i = 0; i < parts->size() && !message.failed(); ++i) {
    read_part(message, (*parts)[i], fmt::format("{}[{}]", message.path_of("content"), i), out);
  }
}

void read_tool_calls(FieldReader& message, v1::Message& out) {
  const auto* calls = message.array("tool_calls", kMaxToolCalls);
  if (!calls) return;
  for (size_t i = 0; i < calls->size() && !message.failed(); ++i) {
    FieldReader call((*calls)[i], fmt::format("{}[{}]", message.path_of("tool_calls"), i));
    v1::ToolCall& made = *out.add_tool_calls();
    made.set_id(call.text("id").value_or(""));
    std::string type = call.text("type").value_or("function");
    if (type != "function")
      call.fail_on("type", fmt::format("'{}' must be function.", call.path_of("type")), Code::kUnsupportedFeature);
    const auto* function = call.object("function");
    if (!function) {
      call.fail_on("function", fmt::format("'{}' is missing.", call.path_of("function")));
    } else {
      FieldReader inner(*function, call.path_of("function"));
      made.set_name(inner.text("name").value_or(""));
      made.set_arguments_json(inner.text("arguments").value_or("{}"));
      if (made.name().empty()) inner.fail_on("name", fmt::format("'{}' is missing.", inner.path_of("name")));
      inner.ignore({"parsed_arguments"});  // the SDKs' parse helpers send their own messages back
      inner.refuse_unknown();
      call.adopt(inner);
    }
    call.ignore({"index"});
    call.refuse_unknown();
    message.adopt(call);
  }
}

bool is_role(const std::string& role) {
  return role == "system" || role == "developer" || role == "user" || role == "assistant" || role == "tool";
}

void read_message(FieldReader& body, const nlohmann::json& value, size_t index, v1::Message& out) {
  FieldReader message(value, fmt::format("messages[{}]", index));
  out.set_role(message.text("role").value_or(""));
  if (out.role() == "function") {
    message.fail_with({Code::kUnsupportedFeature, "The role 'function' is not supported: use 'tool'.",
                       message.path_of("role"), "unsupported_value", 0});
  } else if (!is_role(out.role())) {
    message.fail_on(
        "role", fmt::format("'{}' must be one of system, developer, user, assistant, tool.", message.path_of("role")));
  }
  read_content(message, out);
  out.set_name(message.text("name").value_or(""));
  if (out.role() == "assistant") {
    read_tool_calls(message, out);
    out.set_reasoning(message.text("reasoning_content").value_or(message.text("reasoning").value_or("")));
    message.ignore({"reasoning"});
    message.refuse("audio", "this node has no audio");
    message.refuse("function_call", "use tool_calls");
    message.ignore({"refusal", "annotations", "parsed"});
    if (out.content_is_null() && out.tool_calls_size() == 0) {
      message.fail_on("content", fmt::format("'{}' may be null only beside tool_calls.", message.path_of("content")));
    }
  }
  if (out.role() == "tool") {
    out.set_tool_call_id(message.text("tool_call_id").value_or(""));
    if (out.tool_call_id().empty())
      message.fail_on("tool_call_id", fmt::format("'{}' is missing.", message.path_of("tool_call_id")));
  }
  message.refuse_unknown();
  body.adopt(message);
}

}  // namespace

void read_messages(FieldReader& body, v1::Conversation& out) {
  const auto* messages = body.array("messages", kMaxMessages);
  if (body.failed()) return;
  if (!messages)
    return body.fail_with(
        {Code::kBadRequest, "Missing required parameter: 'messages'.", "messages", "missing_required_parameter", 0});
  if (messages->empty()) return body.fail_on("messages", "'messages' must hold at least one message.");
  for (size_t i = 0; i < messages->size() && !body.failed(); ++i)
    read_message(body, (*messages)[i], i, *out.add_messages());
}

}  // namespace tie::client
