// Writes JSON text without building a tree: what a streamed token costs is a few string appends. Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace tie::client {

// A quoted JSON string. Bytes that are not UTF-8 become U+FFFD, so the result is always valid.
void append_json_string(std::string& out, std::string_view text);
// A JSON number; infinite or not a number becomes -9999.0, as OpenAI does for very unlikely tokens.
void append_json_number(std::string& out, double value);
// The length of the UTF-8 sequence at text[at], 0 when it is not valid there.
size_t utf8_sequence(std::string_view text, size_t at);
bool is_utf8(std::string_view text);

}  // namespace tie::client
