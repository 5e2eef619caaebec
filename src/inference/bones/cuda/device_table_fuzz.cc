// The table of GPU weights, as it arrives from another process: whatever parses stays inside the memory it names and
// survives a round trip.
#include <cstdlib>

#include "inference/bones/cuda/device_weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie::bones::cuda;
  const auto table = DeviceTable::parse({data, size});
  if (!table) return 0;
  for (const DeviceTensor& tensor : table->tensors)
    if (tensor.offset > table->bytes || tensor.bytes > table->bytes - tensor.offset) std::abort();
  if (!DeviceTable::parse(table->serialize())) std::abort();
  return 0;
}
