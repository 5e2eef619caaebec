// The fat binary with the GPU's kernels, as a build with nvcc installs it. Read by the programs that use a GPU, before
// they give up their files.
#pragma once
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace tie::bones::cuda {

// `given` empty: the installed one, PREFIX/lib/tie/tie_kernels.fatbin beside the program's PREFIX/libexec/tie.
// kNotFound, saying what to do, when it is not there.
Result<Bytes> read_gpu_kernels(const std::string& given);

}  // namespace tie::bones::cuda
