// Builds GGUF files in memory for tests. Call order: keys, tensors, finish.
#pragma once
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model_files/gguf_header.h"

namespace tie::bones::testing {

class GgufWriter : public model_files::GgufHeader {
 public:
  // dims in ggml order: dims[0] contiguous; `data` as long as type and dims say.
  void tensor(const std::string& name, model_files::TensorType type, const std::vector<uint64_t>& dims, Bytes data);
  Bytes finish() const;

 private:
  std::vector<Bytes> data_;
};

}  // namespace tie::bones::testing
