#include "inference/hosts/server/gpu_model.h"

#include <algorithm>
#include <bit>

namespace tie::runtime_host {

using namespace bones::cuda;

// Twice what the context has: block tables are padded to a power of two.
CudaModelOptions with_context(CudaModelOptions limits, const bones::ModelConfig& config) {
  const uint32_t blocks = config.context_length / 16 + 1;
  limits.max_table_blocks = 2 * std::bit_ceil(std::clamp(blocks, 64u, 1u << 17));
  return limits;
}

Result<std::unique_ptr<GpuModel>> GpuModel::attach(AttachedModel& model, const GpuFlags& flags,
                                                   CudaModelOptions limits) {
  if (!model.gpu) return fail(Code::kFailedPrecondition, "the model does not lie on a GPU");
  const auto image = model.weights.bytes();
  TIE_TRY(const DeviceTable table, DeviceTable::parse({reinterpret_cast<const uint8_t*>(image.data()), image.size()}));
  if (table.bytes != model.gpu->bytes) return fail(Code::kCorrupt, "the owner's GPU memory and its table differ");
  TIE_TRY(const Bytes kernels, read_gpu_kernels(flags.kernels));
  std::unique_ptr<GpuModel> out(new GpuModel);
  TIE_TRY(out->driver_, Driver::load_gpu(model.gpu->gpu, flags.driver));
  IpcHandle handle;
  std::copy(model.gpu->handle.begin(), model.gpu->handle.end(), handle.bytes);
  TIE_TRY(DeviceMemory weights, DeviceMemory::attach(out->driver_, handle, table.bytes));
  TIE_TRY(CudaModel attached,
          CudaModel::attach(out->driver_, {reinterpret_cast<const std::byte*>(kernels.data()), kernels.size()}, table,
                            std::move(weights), with_context(limits, table.config)));
  out->loan_ = std::move(model.gpu->loan);
  out->model_ = std::make_unique<CudaModel>(std::move(attached));
  return out;
}

// Whatever the driver refuses it will refuse again: its errors stay with the context.
template <typename Work>
auto GpuModel::on_gpu(Work work) -> decltype(work()) {
  if (lost_) return fail(Code::kRuntimeLost, "the GPU is lost");
  if (auto chosen = driver_->use_on_this_thread(); !chosen) {
    lost_ = true;
    return std::unexpected(std::move(chosen.error()));
  }
  auto done = work();
  if (!done && done.error().code == Code::kIo) lost_ = true;
  return done;
}

bool GpuModel::lost() {
  if (!lost_ && loan_ && os::wait_readable(loan_.get(), Deadline::in_ms(0))) lost_ = true;
  return lost_;
}

Result<void> GpuModel::reserve(const bones::KvLayout& layout, uint32_t n_blocks) {
  return on_gpu([&]() -> Result<void> {
    kv_.reset();
    TIE_TRY(DeviceKv kv, DeviceKv::create(driver_, layout, n_blocks));
    kv_.emplace(std::move(kv));
    return {};
  });
}

Result<bones::Logits> GpuModel::forward(const bones::Batch& batch, const bones::KvPool& kv) {
  if (!kv_ || kv.n_blocks != kv_->pool().n_blocks)
    return fail(Code::kFailedPrecondition, "the batch is for another KV pool than the GPU's");
  return on_gpu([&] { return model_->forward(batch, kv_->pool()); });
}

Result<void> GpuModel::put(uint32_t block) {
  return on_gpu([&] { return kv_->put(block); });
}
Result<void> GpuModel::get(uint32_t block) {
  return on_gpu([&] { return kv_->get(block); });
}
Result<void> GpuModel::zero(uint32_t block) {
  return on_gpu([&] { return kv_->zero(block); });
}
Result<void> GpuModel::copy(uint32_t to, uint32_t from) {
  return on_gpu([&] { return kv_->copy(to, from); });
}

}  // namespace tie::runtime_host
