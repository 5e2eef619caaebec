// The AMX products on emulated tiles: the same body, compiled for AVX-512 alone.
#include <immintrin.h>

#include "inference/bones/kernels/amx/amx.h"
#include "inference/bones/kernels/amx/emulated_tiles.h"
#include "inference/bones/kernels/packing_ids.h"

namespace tie::bones::amx {
namespace {

#include "inference/bones/kernels/avx512/dot.inc.h"
#include "inference/bones/kernels/avx512/packings.inc.h"

struct Tiles {
  static void configure(const TileConfig& config) { emulated::configure(config); }
  static void release() { emulated::release(); }
  template <int tile>
  static void zero() {
    emulated::zero(tile);
  }
  template <int tile>
  static void load(const void* from, size_t stride) {
    emulated::load(tile, from, stride);
  }
  template <int tile>
  static void store(void* to, size_t stride) {
    emulated::store(tile, to, stride);
  }
  template <int c, int a, int b>
  static void dot() {
    emulated::dot_unsigned_signed(c, a, b);
  }
};

#include "inference/bones/kernels/amx/products.inc.h"

}  // namespace

void matmul_emulated(const MatmulJob& job) {
  multiply_quantised(job);
}

}  // namespace tie::bones::amx
