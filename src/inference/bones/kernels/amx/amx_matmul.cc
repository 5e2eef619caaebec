// The AMX products on the CPU's tiles. This file alone is compiled for AMX. The instructions are assembly because the
// compiler's intrinsics take no template arguments and do not say that they touch memory.
#include <immintrin.h>

#include "inference/bones/kernels/amx/amx.h"
#include "inference/bones/kernels/amx/tile_config.h"
#include "inference/bones/kernels/packing_ids.h"

namespace tie::bones::amx {
namespace {

#include "inference/bones/kernels/avx512/dot.inc.h"
#include "inference/bones/kernels/avx512/packings.inc.h"

struct Tiles {
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  static void release() { asm volatile("tilerelease"); }
  template <int tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(tile));
  }
  template <int tile>
  static void load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
  }
  template <int tile>
  static void store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
  }
  // c += a's unsigned bytes times b's signed ones.
  template <int c, int a, int b>
  static void dot() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

#include "inference/bones/kernels/amx/products.inc.h"

}  // namespace

void matmul(const MatmulJob& job) {
  multiply_quantised(job);
}

}  // namespace tie::bones::amx
