#include "inference/bones/testing/gguf_writer.h"

#include <utility>

namespace tie::bones::testing {

void GgufWriter::tensor(const std::string& name, model_files::TensorType type, const std::vector<uint64_t>& dims,
                        Bytes data) {
  GgufHeader::tensor(name, type, dims);
  data_.push_back(std::move(data));
}

Bytes GgufWriter::finish() const {
  Bytes out = bytes();
  for (const Bytes& data : data_) {
    append(out, ByteView(data));
    out.resize((out.size() + model_files::kGgufAlignment - 1) / model_files::kGgufAlignment *
               model_files::kGgufAlignment);
  }
  return out;
}

}  // namespace tie::bones::testing
