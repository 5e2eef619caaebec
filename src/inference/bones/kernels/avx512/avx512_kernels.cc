// The AVX-512 kernel set: F, BW, DQ, VL, VNNI, GFNI. This folder alone is compiled for it.
#include <immintrin.h>

#include "inference/bones/kernels/avx512/avx512.h"
#include "inference/bones/kernels/packing_ids.h"
#include "inference/bones/kernels/q8_cache.h"

namespace tie::bones {
namespace {

#include "inference/bones/kernels/avx512/vector.inc.h"
#include "inference/bones/kernels/simd/float_matmul.inc.h"
#include "inference/bones/kernels/simd/vector_kernels.inc.h"
// Builds on those.
#include "inference/bones/kernels/avx512/q8_vector.inc.h"
#include "inference/bones/kernels/simd/q8_attention.inc.h"

void matmul(const MatmulJob& job) {
  switch (static_cast<uint32_t>(job.w.packing)) {
    case kPackingF16:
      return float_matmul<FloatKind::kF16>(job);
    case kPackingBf16:
      return float_matmul<FloatKind::kBf16>(job);
    case kPackingF32:
      return float_matmul<FloatKind::kF32>(job);
    default:
      return avx512::quantised_matmul(job);
  }
}

void quantize_fast(const QuantizeJob& job) {
  const uint32_t done = avx512::quantize(job);
  if (done == job.n_blocks) return;
  QuantizeJob rest = job;
  rest.first_block += done, rest.n_blocks -= done;
  quantize(rest);
}

}  // namespace

const KernelSet kAvx512Kernels = {"avx512",      matmul,        quantize_fast, rms_scale,       scale_mul,
                                  scale_mul_add, scale_by,      add,           rotate,          silu_gate,
                                  gelu_gate,     soft_cap,      store_kv,      prepare_queries, attend_block,
                                  attend_more,   merge_partial, q8_turn};

}  // namespace tie::bones
