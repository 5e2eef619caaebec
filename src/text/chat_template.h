// A model's chat template (Jinja), rendered under budgets. Wraps the Rust library edge_text; the program links it (or
// edge_client). Threads: render() may be called from several threads. Owns: the compiled template. Limits:
// RenderLimits; a template or input that passes one gives kTooLarge; a template's own raise_exception gives kBadRequest
// with its text.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tie::text {

struct RenderLimits {
  uint64_t fuel = 2'000'000;  // engine instructions, and units of 64 bytes of data
  uint64_t max_output_bytes = 16u << 20;
  uint64_t max_template_bytes = 1u << 20;
  bool trim_blocks = true;  // trim_blocks and lstrip_blocks of Jinja, as transformers sets them
};

class ChatTemplate {
 public:
  // kBadRequest with line and reason for a template that does not parse.
  static Result<ChatTemplate> compile(std::string_view source, const RenderLimits& limits = {});
  ChatTemplate(ChatTemplate&&) noexcept = default;
  ChatTemplate& operator=(ChatTemplate&&) noexcept = default;

  // `context_json`: one JSON object; its members are the template's variables. `now_unix_s`: the clock of strftime_now
  // (UTC).
  Result<std::string> render(std::string_view context_json, int64_t now_unix_s) const;

 private:
  ChatTemplate() = default;
  struct Handle;
  struct Free {
    void operator()(Handle* handle) const;
  };
  std::unique_ptr<Handle, Free> handle_;
};

}  // namespace tie::text
