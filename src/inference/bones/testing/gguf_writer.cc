#include "inference/bones/testing/gguf_writer.h"

#include <cstring>

namespace tie::bones::testing {
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
void align(Bytes& out) {
  out.resize((out.size() + 31) / 32 * 32);
}

}  // namespace

void GgufWriter::key(const std::string& key, uint32_t type) {
  put_text(metadata_, key);
  put<uint32_t>(metadata_, type);
  ++n_keys_;
}
void GgufWriter::text(const std::string& name, const std::string& value) {
  key(name, 8), put_text(metadata_, value);
}
void GgufWriter::u32(const std::string& name, uint32_t value) {
  key(name, 4), put(metadata_, value);
}
void GgufWriter::f32(const std::string& name, float value) {
  key(name, 6), put(metadata_, value);
}
void GgufWriter::boolean(const std::string& name, bool value) {
  key(name, 7), put<uint8_t>(metadata_, value);
}
void GgufWriter::texts(const std::string& name, const std::vector<std::string>& values) {
  key(name, 9);
  put<uint32_t>(metadata_, 8);
  put<uint64_t>(metadata_, values.size());
  for (const std::string& value : values) put_text(metadata_, value);
}
void GgufWriter::integers(const std::string& name, const std::vector<int32_t>& values) {
  key(name, 9);
  put<uint32_t>(metadata_, 5);
  put<uint64_t>(metadata_, values.size());
  for (int32_t value : values) put(metadata_, value);
}
void GgufWriter::tensor(const std::string& name, model_files::TensorType type, std::vector<uint64_t> dims, Bytes data) {
  tensors_.push_back({name, type, std::move(dims), std::move(data)});
}

Bytes GgufWriter::finish() const {
  Bytes out = to_bytes("GGUF");
  put<uint32_t>(out, 3);
  put<uint64_t>(out, tensors_.size());
  put<uint64_t>(out, n_keys_);
  append(out, ByteView(metadata_));
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    put_text(out, tensor.name);
    put<uint32_t>(out, static_cast<uint32_t>(tensor.dims.size()));
    for (uint64_t d : tensor.dims) put(out, d);
    put(out, static_cast<uint32_t>(tensor.type));
    put(out, offset);
    offset += (tensor.data.size() + 31) / 32 * 32;
  }
  align(out);
  for (const Tensor& tensor : tensors_) {
    append(out, ByteView(tensor.data));
    align(out);
  }
  return out;
}

}  // namespace tie::bones::testing
