// Fuzz targets in one. The first byte chooses what the rest is: a GGUF file to pack, a weights image to attach (and to
// run once, when it is accepted), or edits (3 bytes of place, 1 of value) of a good tiny file or of its good image,
// which reach far deeper.
#include <cstring>
#include <memory>
#include <new>

#include "inference/bones/model.h"
#include "inference/bones/testing/tiny_model.h"

namespace {

using namespace tie;
using namespace tie::bones;

void run_image(std::span<const std::byte> image) {
  if (!WeightsImage::attach(image)) return;
  static ThreadPool pool({1});
  ModelOptions options;
  options.pool = &pool, options.max_batch_rows = 4, options.max_logit_rows = 1;
  auto attached = WeightsImage::attach(image);
  if (attached->config().n_vocab > 4096 || attached->config().n_embd > 1024 || attached->config().n_ff > 4096 ||
      attached->config().n_layers > 8)
    return;
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

template <typename Byte>
void edit(Byte* bytes, size_t size, const uint8_t* edits, size_t n) {
  for (; n >= 4; edits += 4, n -= 4)
    bytes[(edits[0] | edits[1] << 8 | edits[2] << 16) % size] = static_cast<Byte>(edits[3]);
}

void pack_edited_file(const uint8_t* edits, size_t n) {
  static const Bytes good = [] {
    testing::TinyModelOptions o;
    o.n_layers = 1, o.n_embd = o.n_ff = 32, o.n_heads = 2, o.n_kv_heads = 1, o.n_vocab = 300;
    return testing::tiny_model(o);
  }();
  Bytes file = good;
  edit(file.data(), file.size(), edits, n);
  pack_file(file);
}

void run_edited_image(const uint8_t* edits, size_t n) {
  static const OwnedImage good = *OwnedImage::from_gguf(testing::tiny_model({}));
  std::unique_ptr<std::byte[]> memory(new std::byte[good.bytes().size() + 64]);
  std::byte* aligned = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
  std::memcpy(aligned, good.bytes().data(), good.bytes().size());
  edit(aligned, 4096, edits, n);  // the header and the tensor table
  run_image({aligned, good.bytes().size()});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  switch (data[0] % 4) {
    case 0:
      return pack_file({data + 1, size - 1}), 0;
    case 1:
      return pack_edited_file(data + 1, size - 1), 0;
    case 2:
      return run_edited_image(data + 1, size - 1), 0;
    default:
      break;
  }
  std::unique_ptr<std::byte[]> memory(new std::byte[size + 64]);
  std::byte* aligned = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
  std::memcpy(aligned, data + 1, size - 1);
  run_image({aligned, size - 1});
  return 0;
}
