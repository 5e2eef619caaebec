#include "inference/bones/kernels/kernel_choice.h"

#include <string>

#include "inference/bones/kernels/packing_ids.h"
#include "inference/bones/model.h"
#include "inference/bones/weights_image.h"

namespace tie::bones {

static_assert(kPackingQ4 == static_cast<uint32_t>(Packing::kTileQ4) &&
              kPackingQ5 == static_cast<uint32_t>(Packing::kTileQ5) &&
              kPackingQ6 == static_cast<uint32_t>(Packing::kTileQ6) &&
              kPackingQ8 == static_cast<uint32_t>(Packing::kTileQ8) &&
              kPackingF16 == static_cast<uint32_t>(Packing::kTileF16) &&
              kPackingBf16 == static_cast<uint32_t>(Packing::kTileBf16) &&
              kPackingF32 == static_cast<uint32_t>(Packing::kTileF32));

std::vector<const KernelSet*> runnable_kernel_sets() {
  std::vector<const KernelSet*> sets;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("gfni");
  if (avx512 && __builtin_cpu_supports("avx512fp16")) sets.push_back(&avx512fp16_kernels());
  if (avx512) sets.push_back(&kAvx512Kernels);
  if (avx2) sets.push_back(&kAvx2Kernels);
#endif
  sets.push_back(&kReferenceKernels);
  return sets;
}

Result<const KernelSet*> choose_kernel_set(std::string_view name) {
  for (const KernelSet* set : runnable_kernel_sets())
    if (name.empty() || name == set->name) return set;
  if (name == reference_fp16_kernels().name) return &reference_fp16_kernels();
  return fail(Code::kUnsupportedFeature,
              "kernel set \"" + std::string(name) + "\" is unknown or not supported by this CPU");
}

const KernelSet& twin_of(const KernelSet& set) {
  return std::string_view(set.name) == "avx512fp16" ? reference_fp16_kernels() : kReferenceKernels;
}

std::vector<std::string_view> available_kernel_sets() {
  std::vector<std::string_view> names;
  for (const KernelSet* set : runnable_kernel_sets()) names.push_back(set->name);
  return names;
}

}  // namespace tie::bones
