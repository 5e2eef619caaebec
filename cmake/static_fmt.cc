// What objects compiled against the shared libfmt need of it, for programs that link statically: Debian ships no archive of it.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

namespace tie {
// Taking the address makes the compiler emit the inline function.
extern const void* const kFmtFunctions[];
const void* const kFmtFunctions[] = {reinterpret_cast<const void*>(static_cast<std::string (*)(fmt::string_view, fmt::format_args)>(&fmt::vformat))};
}  // namespace tie
