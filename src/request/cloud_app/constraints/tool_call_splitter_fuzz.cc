// Any text, cut anywhere, splits as it does in one piece.
#include <cstdlib>
#include <iterator>

#include "request/cloud_app/constraints/tool_call_splitter.h"

namespace app = tie::request::app;

namespace {

std::string split(const app::ToolSyntax& syntax, app::CallsWanted wanted, std::string_view text, size_t piece) {
  app::ToolCallSplitter splitter(syntax, {"f", "g"}, wanted);
  app::SplitOutput out;
  for (size_t at = 0; at < text.size(); at += piece) splitter.push(text.substr(at, piece), out);
  splitter.finish(out);
  std::string seen = out.text;
  for (const app::CallFragment& call : out.calls)
    seen += (call.id.empty() ? "" : "\n#" + call.name + "\n") + call.arguments;
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const app::ToolSyntax syntaxes[] = {
      {.style = app::ToolStyle::kTagged, .open = "<tool_call>", .close = "</tool_call>"},
      {.style = app::ToolStyle::kObject, .open = "<|python_tag|>", .arguments_key = "parameters", .many = false},
      {.style = app::ToolStyle::kList, .open = "[TOOL_CALLS]"},
      {.style = app::ToolStyle::kNamed, .open = "[TOOL_CALLS]", .arguments_marker = "[ARGS]"},
      {.style = app::ToolStyle::kNamed, .open = "[TOOL_CALLS]", .arguments_marker = "[ARGS]", .id_marker = "[CALL_ID]"},
      {.style = app::ToolStyle::kXml, .open = "<tool_call>", .close = "</tool_call>", .xml = app::qwen_xml_form()},
      {.style = app::ToolStyle::kXml, .open = "<tool_call>", .close = "</tool_call>", .xml = app::glm_xml_form()},
      {.style = app::ToolStyle::kXml, .open = "<tool_call>", .close = "</tool_call>", .xml = app::flat_glm_xml_form()}};
  const app::ToolSyntax& syntax = syntaxes[data[0] % std::size(syntaxes)];
  auto wanted = data[0] & 0x80 ? app::CallsWanted::kOnly : app::CallsWanted::kPossible;
  std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  if (split(syntax, wanted, text, text.size() + 1) != split(syntax, wanted, text, data[1] % 16 + 1)) std::abort();
  return 0;
}
