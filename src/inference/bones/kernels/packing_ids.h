// The numbers of enum Packing (weights_image.h) for files that must not include anything with inline functions;
// kernel_set.cc checks that they agree.
#pragma once
#include <cstdint>

namespace tie::bones {
inline constexpr uint32_t kPackingQ4 = 1, kPackingQ5 = 2, kPackingQ6 = 3, kPackingQ8 = 4, kPackingF16 = 5,
                          kPackingBf16 = 6, kPackingF32 = 7;
}
