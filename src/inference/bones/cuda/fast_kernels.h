// The kernels of this GPU's own matrix units (kernels/cuda/tensor_core), where there are some: which of them a model
// may use, the maps by which TMA finds operands, their launches. None has been proved on a GPU by its author: each one
// that a model would use is first run on random numbers beside its portable twin, and is used only if both agree
// (fast_check.cc). `report` says what was found, for the log. Threads: one at a time.
#pragma once
#include <map>
#include <string>
#include <tuple>

#include "inference/bones/cuda/launcher.h"
#include "inference/bones/kernels/cuda/tensor_core/attention_sm90.h"
#include "inference/bones/kernels/cuda/tensor_core/gemm_sm100.h"
#include "inference/bones/kernels/cuda/tensor_core/gemm_sm90.h"

namespace tie::bones::cuda {

enum class Units : uint32_t { kNone, kHopper, kBlackwell };

class FastKernels {
 public:
  // For products of these weights and attention with heads of `head_dim`. A difference from the twin is told in the
  // report and is no error; an error is the driver's, after which nothing more may work: a kernel that faults ends this
  // process's use of the GPU (then: CudaModelOptions::fast_kernels = false).
  static Result<FastKernels> choose(std::shared_ptr<Driver> driver, Launcher& launcher, std::span<const Format> formats,
                                    uint32_t head_dim);

  bool multiplies(Format format) const { return product_[static_cast<uint32_t>(format)]; }
  // Caches of 16 bits alone.
  bool attends(const PagedKv& kv) const {
    return attention_ && kv.head_dim == head_dim_ && kv.element != KvElement::kE4m3;
  }
  // For people: each kernel that was tried and what became of it. The word of it for a log: "cuda-portable", or
  // "cuda-hopper-3-of-4": so many of the kernels that were tried are used.
  const std::string& report() const { return report_; }
  const std::string& word() const { return word_; }

  Result<void> multiply(Launcher& launcher, Format format, const GemmArgs& product);
  Result<void> attend(Launcher& launcher, const PrefillArgs& attention, uint32_t pool_blocks, uint32_t longest_span,
                      uint32_t spans);

 private:
  Result<TensorMap> rows_map(const void* base, uint32_t inputs, uint32_t rows) const;
  Result<TensorMap> kv_map(const PagedKv& kv, uint32_t pool_blocks) const;
  Result<bool> same_product(Launcher& launcher, Format format);
  Result<bool> same_attention(Launcher& launcher, KvElement element);

  std::shared_ptr<Driver> driver_;
  Units units_ = Units::kNone;
  bool product_[7] = {};
  bool attention_ = false;
  uint32_t head_dim_ = 0;
  std::string report_ = "the GPU's own units were not asked for", word_ = "cuda-portable";
  std::map<std::tuple<const uint8_t*, uint32_t, uint32_t>, TensorMap> weight_maps_;  // by where, inputs, outputs
  std::map<std::tuple<const uint8_t*, uint32_t, KvElement>, TensorMap> kv_maps_;     // by where, blocks
};

}  // namespace tie::bones::cuda
