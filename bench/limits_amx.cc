// Peak arithmetic of the AMX tiles, compiled for them alone: four independent chains of products, nothing from memory.
#include <cstdint>

namespace tie::bench {

// n iterations of 4 tdpbusd of 16 x 16 x 64 multiply-adds. Only where this process may use tiles.
void amx_int8(uint64_t n) {
  struct {
    uint8_t palette = 1, rest[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
  } const config;
  asm volatile("ldtilecfg %0" : : "m"(config));
  for (uint64_t i = 0; i < n; ++i)
    asm volatile(
        "tdpbusd %tmm5, %tmm4, %tmm0\n\ttdpbusd %tmm5, %tmm4, %tmm1\n\t"
        "tdpbusd %tmm5, %tmm4, %tmm2\n\ttdpbusd %tmm5, %tmm4, %tmm3");
  asm volatile("tilerelease");
}

}  // namespace tie::bench
