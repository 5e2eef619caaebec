// How many descriptors this process may have open. A shell's soft limit of 1024, or a careful administrator's smaller
// one, is not what a server wants; the hard limit is what it may take. Called by main functions before they start
// anything.
#pragma once
#include <cstdint>

#include "base/result.h"

namespace tie::os {

// Raises the soft limit to the hard one. The number that then may be open.
uint64_t raise_open_file_limit();
// The same, and kFailedPrecondition in words for whoever starts `what` when that is less than `needed`.
Result<uint64_t> require_open_files(uint64_t needed, const char* what);

}  // namespace tie::os
