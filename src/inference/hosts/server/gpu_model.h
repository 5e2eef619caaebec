// A model on a GPU, as the engine sees one: weights attached by the owner's IPC handle, the KV blocks in GPU memory,
// logits in pinned memory. Nothing of the weights is copied. Threads: one at a time, any (the driver's context is made
// current at each call). A driver error is final: the model is lost(), the process ends, its container is recycled.
// Numbers: unlike the CPU's kernels, equal for equal shapes of batch, not across shapes (bones/cuda/cuda_model.h).
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "inference/bones/cuda/device_kv.h"
#include "inference/bones/cuda/kernel_file.h"
#include "inference/engine/forward_model.h"
#include "inference/hosts/server/weights_source.h"

namespace tie::runtime_host {

struct GpuFlags {
  std::string driver = "libcuda.so.1", nccl = "libnccl.so.2";
  bool portable = false;  // the operator does not want the GPU's own matrix units used
  std::string kernels;    // the fat binary that the build makes of kernels.cu; empty: the installed one
};

// Block tables for the model's whole context.
bones::cuda::CudaModelOptions with_context(bones::cuda::CudaModelOptions limits, const bones::ModelConfig& config);

class GpuModel final : public engine::ForwardModel, private engine::KvDevice {
 public:
  // `model.gpu` must be there; its loan is taken over. kNotFound: no driver, or no file of kernels;
  // kBadRequest: the weights of one of several ranks (gpu_ranks.h); the driver's errors. Before serving mode: the
  // driver opens devices and loads code.
  static Result<std::unique_ptr<GpuModel>> attach(AttachedModel& model, const GpuFlags& flags,
                                                  bones::cuda::CudaModelOptions limits);

  const bones::ModelConfig& config() const override { return model_->config(); }
  Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) override;
  bool finds_best() const override { return true; }
  std::string_view kernels() const override { return model_->kernel_word(); }
  engine::KvDevice* kv_device() override { return this; }
  std::string_view kv_order() const override { return "cuda-1"; }  // pointwise.h, PagedKv
  // Also when the owner has ended: what it lent is gone with it.
  bool lost() override;

 private:
  GpuModel() = default;
  Result<void> reserve(const bones::KvLayout& layout, uint32_t n_blocks) override;
  std::span<std::byte> staging() override { return kv_->staging(); }
  Result<void> put(uint32_t block) override;
  Result<void> get(uint32_t block) override;
  Result<void> zero(uint32_t block) override;
  Result<void> copy(uint32_t to, uint32_t from) override;
  template <typename Work>
  auto on_gpu(Work work) -> decltype(work());

  os::Fd loan_;
  std::shared_ptr<bones::cuda::Driver> driver_;
  std::unique_ptr<bones::cuda::CudaModel> model_;
  std::optional<bones::cuda::DeviceKv> kv_;
  std::atomic<bool> lost_{false};
};

}  // namespace tie::runtime_host
