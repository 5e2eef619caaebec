// Any bytes are read or refused; what is read stays inside the file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "model_files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tie::ByteView file(data, size);
  const auto parsed = tie::model_files::Safetensors::parse(file);
  if (!parsed) return 0;
  for (const auto& tensor : parsed->tensors())
    if (!tensor.data.empty() && (tensor.data.data() < data || tensor.data.data() + tensor.data.size() > data + size))
      std::abort();
  return 0;
}
