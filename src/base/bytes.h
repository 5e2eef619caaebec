// Byte strings and the few conversions everyone needs: hex, big-endian integers, views between text and bytes.
// Pure functions. Hex is lower case on output; both cases are read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tie {

using Bytes = std::vector<uint8_t>;
using ByteView = std::span<const uint8_t>;

inline ByteView as_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Bytes to_bytes(std::string_view text) {
  return {text.begin(), text.end()};
}
inline std::string to_string(ByteView bytes) {
  return std::string(as_text(bytes));
}

std::string to_hex(ByteView bytes);
Result<Bytes> from_hex(std::string_view hex);  // odd length or a non-hex character: kBadRequest

// Big-endian, as every wire format of this product. load: the view must hold at least the integer's size.
void append_u32_be(Bytes& out, uint32_t value);
void append_u64_be(Bytes& out, uint64_t value);
uint32_t load_u32_be(const uint8_t* p);
uint64_t load_u64_be(const uint8_t* p);

inline void append(Bytes& out, ByteView more) {
  out.insert(out.end(), more.begin(), more.end());
}
inline void append(Bytes& out, std::string_view more) {
  append(out, as_bytes(more));
}

// Equal in constant time for equal lengths.
bool equal_constant_time(ByteView a, ByteView b);

}  // namespace tie
