// What the emulated driver counts; tests find tie_fake_cuda_counters() in the loaded library.
#pragma once
#include <cstdint>

struct FakeCudaCounters {
  uint64_t copied_in_bytes = 0, copied_out_bytes = 0, allocations = 0, attaches = 0, launches = 0;
};
extern "C" const FakeCudaCounters* tie_fake_cuda_counters();
// From now on a GPU of compute capability `major`.0 (first: 3), on which the kernel `broken` does nothing.
extern "C" void tie_fake_cuda_become(int major, const char* broken);
