#include "text/json_guard.h"

#include <vector>

namespace tie::text {

bool json_is_unwieldy(std::string_view text, const JsonBounds& bounds) {
  std::vector<size_t> members{0};  // colons seen at each open level
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\')
        ++at;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (members.size() > bounds.depth) return true;
      members.push_back(0);
    } else if ((c == '}' || c == ']') && members.size() > 1) {
      members.pop_back();
    } else if (c == ':' && ++members.back() > bounds.members) {
      return true;
    }
  }
  return false;
}

}  // namespace tie::text
