// Makes an answer safe to print on a terminal: control characters could move the cursor, rewrite what was shown or
// worse. Keeps newline and tab; everything else below space, DEL and the C1 controls become U+FFFD. Pure function over
// whole characters.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace tie::cli {

std::string for_terminal(std::string_view text);
// "1 page", "2 pages".
std::string counted(uint64_t n, std::string_view one);

}  // namespace tie::cli
