// Base64 (RFC 4648, section 4) as data: URLs carry it. Pure function.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace tie::client {

std::optional<std::string> from_base64(
    std::string_view text);  // padding may be missing; anything else outside the alphabet: nullopt

}  // namespace tie::client
