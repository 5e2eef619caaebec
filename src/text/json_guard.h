// Bounds on the shape of JSON text, checked before a recursive parser or an order-keeping object (quadratic in its
// members) sees it.
#pragma once
#include <cstddef>
#include <string_view>

namespace tie::text {

struct JsonBounds {
  size_t depth = 100;
  size_t members = 1024;  // of one object
};

// True when brackets outside strings nest deeper, or an object has more members, than allowed. Cost: one pass.
bool json_is_unwieldy(std::string_view text, const JsonBounds& bounds);

}  // namespace tie::text
