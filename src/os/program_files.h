// Which shared libraries a program needs, so that a sandbox root and the release measurement contain these and no
// others. The loader itself is asked (`ld.so --list`), which maps the program but runs none of its code. Used by the
// launcher at start.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace tie::os {

struct ProgramLibraries {
  std::string loader;                  // /lib64/ld-linux-x86-64.so.2; empty for a static program
  std::vector<std::string> libraries;  // absolute paths, sorted
};

// Errors: kNotFound, kCorrupt (not an ELF program, or a library is missing: named).
Result<ProgramLibraries> program_libraries(const std::string& program);

// The strings of the program's section `tie_log` (see log.h): the lines it may write. Empty when it has none.
Result<std::vector<std::string>> program_log_formats(const std::string& program);

}  // namespace tie::os
