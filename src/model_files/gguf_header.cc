#include "model_files/gguf_header.h"

namespace tie::model_files {
namespace {

template <typename T>
void put(Bytes& out, T value) {
  const auto* p = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), p, p + sizeof value);
}
void put_text(Bytes& out, const std::string& text) {
  put<uint64_t>(out, text.size());
  append(out, std::string_view(text));
}
uint64_t padded(uint64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

}  // namespace

void GgufHeader::key(const std::string& key, uint32_t type) {
  put_text(metadata_, key);
  put<uint32_t>(metadata_, type);
  ++n_keys_;
}
void GgufHeader::text(const std::string& name, const std::string& value) {
  key(name, 8), put_text(metadata_, value);
}
void GgufHeader::u32(const std::string& name, uint32_t value) {
  key(name, 4), put(metadata_, value);
}
void GgufHeader::f32(const std::string& name, float value) {
  key(name, 6), put(metadata_, value);
}
void GgufHeader::boolean(const std::string& name, bool value) {
  key(name, 7), put<uint8_t>(metadata_, value);
}
void GgufHeader::texts(const std::string& name, const std::vector<std::string>& values) {
  key(name, 9);
  put<uint32_t>(metadata_, 8);
  put<uint64_t>(metadata_, values.size());
  for (const std::string& value : values) put_text(metadata_, value);
}
void GgufHeader::integers(const std::string& name, const std::vector<int32_t>& values) {
  key(name, 9);
  put<uint32_t>(metadata_, 5);
  put<uint64_t>(metadata_, values.size());
  for (int32_t value : values) put(metadata_, value);
}

void GgufHeader::tensor(const std::string& name, TensorType type, const std::vector<uint64_t>& dims) {
  put_text(tensors_, name);
  put<uint32_t>(tensors_, static_cast<uint32_t>(dims.size()));
  for (uint64_t d : dims) put(tensors_, d);
  put(tensors_, static_cast<uint32_t>(type));
  put(tensors_, data_bytes_);
  data_bytes_ += padded(gguf_tensor_bytes(type, dims));
  ++n_tensors_;
}

Bytes GgufHeader::bytes() const {
  Bytes out = to_bytes("GGUF");
  put<uint32_t>(out, 3);
  put(out, n_tensors_);
  put(out, n_keys_);
  append(out, ByteView(metadata_));
  append(out, ByteView(tensors_));
  out.resize(padded(out.size()));
  return out;
}

uint64_t gguf_tensor_bytes(TensorType type, const std::vector<uint64_t>& dims) {
  uint64_t elements = 1;
  for (uint64_t d : dims) elements *= d;
  const TensorTypeInfo* info = tensor_type_info(type);
  return info ? elements / info->block_elements * info->block_bytes : 0;
}

}  // namespace tie::model_files
