// Peak arithmetic of the AMX tiles, compiled for them alone: four independent chains of products, nothing from memory.
#include <cstdint>

#include "bench/limits.h"

namespace tie::bench {
namespace {

struct SixFullTiles {
  SixFullTiles() {
    struct {
      uint8_t palette = 1, rest[15] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
    } const config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  ~SixFullTiles() { asm volatile("tilerelease"); }
};

}  // namespace

void amx_int8(uint64_t n) {
  const SixFullTiles tiles;
  for (uint64_t i = 0; i < n; ++i)
    asm volatile(
        "tdpbusd %tmm5, %tmm4, %tmm0\n\ttdpbusd %tmm5, %tmm4, %tmm1\n\t"
        "tdpbusd %tmm5, %tmm4, %tmm2\n\ttdpbusd %tmm5, %tmm4, %tmm3");
}

void amx_bf16(uint64_t n) {
  const SixFullTiles tiles;
  for (uint64_t i = 0; i < n; ++i)
    asm volatile(
        "tdpbf16ps %tmm5, %tmm4, %tmm0\n\ttdpbf16ps %tmm5, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm5, %tmm4, %tmm2\n\ttdpbf16ps %tmm5, %tmm4, %tmm3");
}

}  // namespace tie::bench
