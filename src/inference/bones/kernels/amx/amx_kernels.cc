// The tables of the sets "amx" and "amx_emulated". Compiled with the baseline flags.
#include "inference/bones/kernels/amx/amx.h"
#include "inference/bones/kernels/packing_ids.h"

namespace tie::bones {
namespace amx {

uint32_t tile_rows(uint32_t rows) {
  return rows >= kLeastRows ? kAmxTileRows : rows_per_tile(rows);
}

namespace {

bool on_tiles(const MatmulJob& job) {
  const auto packing = static_cast<uint32_t>(job.w.packing);
  return packing >= kPackingQ4 && packing <= kPackingQ8 && job.x->rows >= kLeastRows;
}

void matmul_or_avx512(const MatmulJob& job) {
  on_tiles(job) ? matmul(job) : kAvx512Kernels.matmul(job);
}
void matmul_emulated_or_avx512(const MatmulJob& job) {
  on_tiles(job) ? matmul_emulated(job) : kAvx512Kernels.matmul(job);
}

KernelSet over_avx512(const char* name, void (*products)(const MatmulJob& job)) {
  KernelSet set = __builtin_cpu_supports("avx512fp16") ? avx512fp16_kernels() : kAvx512Kernels;
  set.name = name;
  set.matmul = products;
  set.tile_rows = tile_rows;
  return set;
}

}  // namespace
}  // namespace amx

const KernelSet& amx_kernels() {
  static const KernelSet set = amx::over_avx512("amx", amx::matmul_or_avx512);
  return set;
}

const KernelSet& amx_emulated_kernels() {
  static const KernelSet set = amx::over_avx512("amx_emulated", amx::matmul_emulated_or_avx512);
  return set;
}

}  // namespace tie::bones
