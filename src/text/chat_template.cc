#include "text/chat_template.h"

#include <edge_text.h>

namespace tie::text {
namespace {

// Takes a buffer of the Rust side as a string and frees it.
std::string take(edge_buffer& buffer) {
  std::string out(reinterpret_cast<const char*>(buffer.data), buffer.size);
  edge_buffer_free(&buffer);
  return out;
}

std::unexpected<Error> failure(int code, edge_buffer& buffer) {
  std::string message = take(buffer);
  switch (code) {
    case EDGE_TOO_LARGE:
      return fail(Code::kTooLarge, std::move(message));
    case EDGE_INTERNAL:
      return fail(Code::kInternal, std::move(message));
    default:
      return fail(Code::kBadRequest, std::move(message));
  }
}

const uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

}  // namespace

void ChatTemplate::Free::operator()(Handle* handle) const {
  edge_template_free(reinterpret_cast<edge_template*>(handle));
}

Result<ChatTemplate> ChatTemplate::compile(std::string_view source, const RenderLimits& limits) {
  const edge_template_limits c_limits{limits.fuel, limits.max_output_bytes, limits.max_template_bytes,
                                      limits.trim_blocks, limits.trim_blocks};
  edge_template* compiled = nullptr;
  edge_buffer error{};
  if (int code = edge_template_compile(bytes_of(source), source.size(), &c_limits, &compiled, &error); code != EDGE_OK)
    return failure(code, error);
  ChatTemplate out;
  out.handle_.reset(reinterpret_cast<Handle*>(compiled));
  return out;
}

Result<std::string> ChatTemplate::render(std::string_view context_json, int64_t now_unix_s) const {
  edge_buffer text{};
  const int code = edge_template_render(reinterpret_cast<const edge_template*>(handle_.get()), bytes_of(context_json),
                                        context_json.size(), now_unix_s, &text);
  if (code != EDGE_OK) return failure(code, text);
  return take(text);
}

}  // namespace tie::text
