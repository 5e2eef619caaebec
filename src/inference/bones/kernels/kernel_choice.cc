#include "inference/bones/kernels/kernel_choice.h"

#include <string>

#if defined(__x86_64__)
#include "inference/bones/kernels/amx/amx.h"
#include "inference/bones/kernels/amx/amx_state.h"
#endif
#include "inference/bones/kernel_check.h"
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

namespace {

#if defined(__x86_64__)
bool has_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("gfni");
}
#endif

// Sets that are chosen by their name alone.
const KernelSet* set_for_tests(std::string_view name) {
  if (name == reference_fp16_kernels().name) return &reference_fp16_kernels();
#if defined(__x86_64__)
  if (name == "amx_emulated" && has_avx512()) return &amx_emulated_kernels();
#endif
  return nullptr;
}

// What to add to the refusal of a set.
std::string because(std::string_view name) {
#if defined(__x86_64__)
  if (name == "amx") return has_avx512() ? ": " + std::string(amx::reason(amx::state())) : ": this CPU has no AVX-512";
#endif
  return "";
}

}  // namespace

std::vector<const KernelSet*> runnable_kernel_sets() {
  std::vector<const KernelSet*> sets;
#if defined(__x86_64__)
  const bool avx512 = has_avx512();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (avx512 && amx::state() == amx::State::kReady) sets.push_back(&amx_kernels());
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
  if (const KernelSet* set = set_for_tests(name)) return set;
  return fail(Code::kUnsupportedFeature,
              "kernel set \"" + std::string(name) + "\" is unknown or not supported by this CPU" + because(name));
}

Result<void> check_kernel_set(std::string_view name) {
  if (name.empty()) return {};
  std::string runs;
  for (std::string_view known : available_kernel_sets()) {
    if (name == known) return {};
    runs += (runs.empty() ? "" : ", ") + std::string(known);
  }
  return fail(Code::kUnsupportedFeature,
              "this CPU does not run the kernel set '" + std::string(name) + "'" + because(name) + "; it runs " + runs);
}

const KernelSet& twin_of(const KernelSet& set) {
#if defined(__x86_64__)
  if (set.attend_block == avx512fp16_kernels().attend_block) return reference_fp16_kernels();
#endif
  return kReferenceKernels;
}

std::string_view kernel_set_note() {
#if defined(__x86_64__)
  if (has_avx512()) return amx::word(amx::state());
#endif
  return "";
}

std::vector<std::string_view> available_kernel_sets() {
  std::vector<std::string_view> names;
  for (const KernelSet* set : runnable_kernel_sets()) names.push_back(set->name);
  return names;
}

}  // namespace tie::bones
