// A model's weights in GPU memory. The plan (made from the file, once, by whoever owns the memory) tells sizes and
// writes every tensor to the GPU once, through one pinned buffer; a table describes where each lies. Another process
// attaches with the table and an IPC handle: nothing is copied. The table is checked like any image before it is used.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "inference/bones/cuda/driver.h"
#include "inference/bones/kernels/cuda/weight_formats.h"
#include "inference/bones/weights_image.h"

namespace tie::bones::cuda {

struct DeviceTensor {
  Role role;
  uint32_t layer;
  Format format;  // of a matrix; kF32 for a vector
  uint32_t n, k;  // k == 1: a vector of n floats
  uint32_t reserved;
  uint64_t offset, bytes;
};

struct DeviceTable {
  ModelConfig config;  // of the whole model
  RankPlace place;
  std::vector<DeviceTensor> tensors;
  uint64_t bytes = 0;  // of GPU memory

  Bytes serialize() const;
  // kCorrupt naming what is wrong: sizes, shapes, offsets, missing or doubled tensors.
  static Result<DeviceTable> parse(ByteView bytes);
  const DeviceTensor* find(Role role, uint32_t layer = 0) const;
};

// Reads a GGUF file and fills GPU memory. Errors: PackPlan's, kUnsupportedFeature for what the GPU back end does not
// run (head sizes without a kernel), the driver's.
struct LoadedWeights {
  DeviceTable table;
  DeviceMemory memory;
};
// `written` sees every byte of the table's memory, in order, before it is copied.
Result<LoadedWeights> load_weights(std::shared_ptr<Driver> driver, ByteView gguf, RankPlace place = {},
                                   const std::function<void(ByteView)>& written = {});

}  // namespace tie::bones::cuda
