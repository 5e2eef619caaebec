// Whether this process may use the AMX tiles, found out once: what the CPU says, what the kernel saves and permits, and
// whether a small product comes out right. No AMX machine was at hand when the kernels were written, so the last check
// is not a formality: on any difference the set is not used.
#pragma once
#include <string_view>

#include "inference/bones/kernels/kernel_set.h"

namespace tie::bones::amx {

enum class State {
  kReady,
  kNoHardware,  // the CPU has no tiles, or not of the shape that the kernels use
  kNotSaved,    // the kernel does not save tiles between threads
  kRefused,     // it refused this process its permission (a seccomp filter does that too)
  kWrong,       // a product on tiles differed from plain arithmetic
};

// Asks for the permission on the first call; it is of the whole process, threads that run already included.
State state();
// In words for people; empty for kReady.
std::string_view reason(State state);
// One word for the log; empty for kReady, and for kNoHardware, which is nothing to report.
std::string_view word(State state);

// What state() asks, in order; the first that says no decides. For tests.
struct Questions {
  bool (*cpu_has_tiles)();
  bool (*kernel_saves_tiles)();
  bool (*kernel_permits)();
  void (*matmul)(const MatmulJob& job);
};
State judge(const Questions& questions);

// Whether `matmul` equals the reference set to the bit on a small product of each packing.
bool products_are_right(void (*matmul)(const MatmulJob& job));

}  // namespace tie::bones::amx
