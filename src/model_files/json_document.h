// Reads a small JSON document that came with a model (a safetensors header, config.json) into a tree. Stricter than the
// grammar: the text starts with `{`, holds no NUL byte, names no member of one object twice, and keeps to the bounds.
// Hostile text gives an error; depth costs heap, never stack. Thread-safe.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace tie::model_files {

struct JsonLimits {
  size_t max_bytes = 1 << 20;
  int max_depth = 16;
};

// kTooLarge (bytes), kCorrupt naming what is wrong. `what` names the document in messages.
Result<nlohmann::json> parse_json_object(std::string_view text, const char* what, const JsonLimits& limits = {});

}  // namespace tie::model_files
