// Writes the part of a GGUF file (version 3) that stands before the tensor data: metadata and tensor table. Call order:
// keys and tensors in any order, then bytes(). The caller writes each tensor's data behind it, in the order of the
// tensors, each padded to kGgufAlignment. Pure; not thread-safe.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model_files/gguf.h"

namespace tie::model_files {

inline constexpr uint64_t kGgufAlignment = 32;

class GgufHeader {
 public:
  void text(const std::string& key, const std::string& value);
  void u32(const std::string& key, uint32_t value);
  void f32(const std::string& key, float value);
  void boolean(const std::string& key, bool value);
  void texts(const std::string& key, const std::vector<std::string>& values);
  void integers(const std::string& key, const std::vector<int32_t>& values);
  // dims in ggml order: dims[0] contiguous. Rows must be whole blocks of the type.
  void tensor(const std::string& name, TensorType type, const std::vector<uint64_t>& dims);

  // The file up to the first tensor's data, padded.
  Bytes bytes() const;
  // Bytes that the data of all tensors so far takes, padding included.
  uint64_t data_bytes() const { return data_bytes_; }

 private:
  void key(const std::string& key, uint32_t type);
  Bytes metadata_, tensors_;
  uint64_t n_keys_ = 0, n_tensors_ = 0, data_bytes_ = 0;
};

uint64_t gguf_tensor_bytes(TensorType type, const std::vector<uint64_t>& dims);

}  // namespace tie::model_files
