// Reads the GGUF container (versions 2 and 3, little-endian): metadata and tensor table. Hostile files give an error
// that names the reason; nothing is allocated by an unchecked count, no offset is used before it is checked. Zero copy:
// views point into the caller's bytes, which must outlive the object. Used by text (vocabulary) and bones (weights).
// Source: the public GGUF description (ggml-org/ggml docs/gguf.md).
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace tie::model_files {

enum class GgufType : uint32_t { kU8 = 0, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// A fixed-size scalar array or an array of strings. Nested arrays are refused (no known model has one).
struct GgufArray {
  GgufType type = GgufType::kU8;
  uint64_t count = 0;
  ByteView raw;  // element bytes; for strings the length-prefixed run, already checked. Not necessarily aligned.
  Result<std::vector<std::string_view>> strings() const;  // kBadRequest when the type is not kString
  Result<std::vector<int64_t>> integers() const;          // any integer or bool type
  Result<std::vector<double>> numbers() const;            // any numeric type
};

using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

// Tensor element types by ggml number; sizes come from block_bytes / block_elements.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kBF16 = 30,
};
struct TensorTypeInfo {
  const char* name;
  uint32_t block_elements;
  uint32_t block_bytes;
};
// nullptr for a type number this product does not know.
const TensorTypeInfo* tensor_type_info(TensorType type);

struct GgufTensor {
  std::string_view name;
  TensorType type = TensorType::kF32;
  std::vector<uint64_t> dims;  // ggml order: dims[0] is the contiguous one (columns)
  uint64_t offset = 0;         // from the start of the data section
  uint64_t bytes = 0;
};

struct GgufLimits {
  uint64_t max_metadata_entries = 1 << 16;
  uint64_t max_tensors = 1 << 16;
  uint64_t max_string_bytes = 1 << 24;
  uint64_t max_array_elements = 1 << 24;
};

class Gguf {
 public:
  // `header_only`: accept a file whose tensor data is missing (vocabulary files, tests); otherwise every tensor must
  // lie inside the file.
  static Result<Gguf> parse(ByteView file, bool header_only = false, const GgufLimits& limits = {});

  uint32_t version() const { return version_; }
  const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;
  ByteView tensor_data(const GgufTensor& tensor) const;  // empty when header_only and data is missing

  // Typed access; kNotFound names the key, kBadRequest the type it had.
  Result<uint64_t> get_u64(std::string_view key) const;
  Result<double> get_f64(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<GgufArray> get_array(std::string_view key) const;

 private:
  uint32_t version_ = 0;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, size_t> by_name_;
  ByteView data_;
};

}  // namespace tie::model_files
