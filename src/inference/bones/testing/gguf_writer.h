// Builds GGUF files in memory for tests. Call order: keys, tensors, finish.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "model_files/gguf.h"

namespace tie::bones::testing {

class GgufWriter {
 public:
  void text(const std::string& key, const std::string& value);
  void u32(const std::string& key, uint32_t value);
  void f32(const std::string& key, float value);
  void boolean(const std::string& key, bool value);
  void texts(const std::string& key, const std::vector<std::string>& values);
  void integers(const std::string& key, const std::vector<int32_t>& values);
  // dims in ggml order: dims[0] contiguous.
  void tensor(const std::string& name, model_files::TensorType type, std::vector<uint64_t> dims, Bytes data);
  Bytes finish() const;

 private:
  struct Tensor {
    std::string name;
    model_files::TensorType type;
    std::vector<uint64_t> dims;
    Bytes data;
  };
  void key(const std::string& key, uint32_t type);
  Bytes metadata_;
  uint64_t n_keys_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace tie::bones::testing
