// Fuzz targets in one: the first byte chooses whether the rest is a weights image to attach (and to run once, when it is accepted) or a GGUF file to pack.
#include <cstring>
#include <memory>
#include <new>

#include "inference/bones/model.h"

namespace {

using namespace tie;
using namespace tie::bones;

void run_image(std::span<const std::byte> image) {
  if (!WeightsImage::attach(image)) return;
  static ThreadPool pool({1});
  ModelOptions options;
  options.pool = &pool, options.max_batch_rows = 4, options.max_logit_rows = 1;
  auto attached = WeightsImage::attach(image);
  if (attached->config().n_vocab > 4096 || attached->config().n_embd > 1024 || attached->config().n_ff > 4096 || attached->config().n_layers > 8) return;
  auto model = Model::attach(image, options);
  if (!model) return;
  const auto layout = *KvLayout::for_model(model->config());
  std::vector<std::byte> memory(layout.block_bytes() + 64);
  const KvPool kv{memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64, 1, layout};
  const int32_t token = 0;
  const uint32_t block = 0, row = 0;
  const SequenceSpan span{0, 1, 0, {&block, 1}};
  (void)model->forward({{&token, 1}, {&span, 1}, {&row, 1}, {}}, kv);
}

void pack_file(ByteView file) {
  auto plan = PackPlan::from_gguf(file);
  if (!plan || plan->image_bytes() > (16u << 20)) return;
  auto image = OwnedImage::from_gguf(file);
  if (image) run_image(image->bytes());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  if (data[0] % 2 == 0) {
    pack_file({data + 1, size - 1});
    return 0;
  }
  std::unique_ptr<std::byte[]> memory(new std::byte[size + 64]);
  std::byte* aligned = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
  std::memcpy(aligned, data + 1, size - 1);
  run_image({aligned, size - 1});
  return 0;
}
