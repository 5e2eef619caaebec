// The kernel set "avx512fp16" (Sapphire Rapids and later): AVX-512 with attention in half precision. Compiled with the
// baseline flags.
#include "inference/bones/kernels/avx512fp16/avx512fp16.h"

namespace tie::bones {
namespace {

void prepare_queries(const AttentionJob& job) {
  if (avx512fp16::takes(job))
    avx512fp16::prepare_queries(job);
  else
    kAvx512Kernels.prepare_queries(job);
}

void attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  if (avx512fp16::takes(job))
    avx512fp16::attend_block(job, key_block, out);
  else
    kAvx512Kernels.attend_block(job, key_block, out);
}

KernelSet with_half_attention() {
  KernelSet set = kAvx512Kernels;
  set.name = "avx512fp16";
  set.prepare_queries = prepare_queries;
  set.attend_block = attend_block;
  return set;
}

}  // namespace

const KernelSet& avx512fp16_kernels() {
  static const KernelSet set = with_half_attention();
  return set;
}

}  // namespace tie::bones
