// Input: a template, a zero byte, the variables as JSON. Rendering must end with text or an error within its budgets.
#include <string_view>

#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view context =
      zero == std::string_view::npos ? R"({"messages":[{"role":"user","content":"hi"}]})" : input.substr(zero + 1);
  auto compiled =
      tie::text::ChatTemplate::compile(input.substr(0, zero), {.fuel = 20'000, .max_output_bytes = 1 << 20});
  if (compiled) (void)compiled->render(context, 0);
  return 0;
}
