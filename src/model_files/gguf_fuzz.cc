// Any bytes: parsing must end with a value or an error, and every accessor must stay inside the input.
#include "model_files/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie::model_files;
  for (bool header_only : {false, true}) {
    auto file = Gguf::parse({data, size}, header_only);
    if (!file) continue;
    for (const auto& [key, value] : file->metadata()) {
      if (const auto* array = std::get_if<GgufArray>(&value))
        (void)array->strings(), (void)array->integers(), (void)array->numbers();
      (void)file->get_u64(key), (void)file->get_string(key);
    }
    unsigned sum = 0;
    for (const GgufTensor& tensor : file->tensors())
      for (uint8_t byte : file->tensor_data(tensor)) sum += byte;
    volatile unsigned sink = sum;
    (void)sink;
  }
  return 0;
}
