// Reads a request body as JSON under limits: size, nesting (checked before any recursion), UTF-8, nothing after the
// value. Duplicate keys: the last one counts. Untrusted input. Pure function.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace tie::client {

// kBadRequest with the place of the fault (never a quotation of the body); kTooLarge over kMaxHttpBodyBytes.
Result<nlohmann::json> parse_json_body(std::string_view body);

}  // namespace tie::client
