// Reads one safetensors file: 8 bytes of header length, a JSON header, tensor bytes. Hostile files give an error that
// names the reason; nothing is allocated by an unchecked count, no offset is used before it is checked. Zero copy:
// views point into the caller's bytes, which must outlive the object. Used by model_import. Source: the public format
// description (huggingface/safetensors README). Stricter than the format on purpose: 8 MiB of header, 65,536 tensors,
// 8 dimensions, names of 512 bytes, no name twice.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace tie::model_files {

enum class SafetensorsType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};
const char* safetensors_type_name(SafetensorsType type);
uint32_t safetensors_element_bytes(SafetensorsType type);

struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<uint64_t> shape;  // the last one is contiguous
  ByteView data;                // not necessarily aligned
};

class Safetensors {
 public:
  // Errors: kCorrupt, kTooLarge, kUnsupportedFeature (element type). Cost: the header.
  static Result<Safetensors> parse(ByteView file);

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsTensor* find(std::string_view name) const;

 private:
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace tie::model_files
