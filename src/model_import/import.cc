#include "model_import/import.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/clock.h"
#include "model_import/hf_folder.h"
#include "model_import/row_encoder.h"
#include "model_import/tensor_plan.h"
#include "os/fd.h"

namespace tie::model_import {
namespace {

using model_files::SafetensorsType;
using model_files::TensorType;

constexpr size_t kFlushBytes = 8 << 20;
constexpr int64_t kWriteDeadlineMs = 600'000;

// Of a matrix that came quantised: its own codes' type where the file has such blocks (Q4_1 holds what Q4_0 does).
// Nothing where it must be computed as floats, and where its experts differ in kind.
std::optional<TensorType> type_of_codes(const PlannedTensor& tensor) {
  std::optional<TensorType> all;
  for (const SourceTensor& part : tensor.parts) {
    const auto own = part.quantised ? part.quantised->block_type() : std::nullopt;
    const bool mixed = all && own && (*all == TensorType::kQ8_0) != (*own == TensorType::kQ8_0);
    if (!own || mixed) return std::nullopt;
    all = !all || *all == *own ? *own : TensorType::kQ4_1;
  }
  return all;
}

TensorType type_of(const PlannedTensor& tensor, WeightFormat format) {
  if (!tensor.matrix) return TensorType::kF32;
  const bool eight_bits = format == WeightFormat::kQ8_0 && tensor.dims[0] % 32 == 0;
  const bool quantised = std::any_of(tensor.parts.begin(), tensor.parts.end(),
                                     [](const SourceTensor& part) { return part.quantised.has_value(); });
  if (quantised) return type_of_codes(tensor).value_or(eight_bits ? TensorType::kQ8_0 : TensorType::kF16);
  if (eight_bits) return TensorType::kQ8_0;
  switch (tensor.parts[0].plain->type) {
    case SafetensorsType::kF16:
      return TensorType::kF16;
    case SafetensorsType::kBF16:
      return TensorType::kBF16;
    default:
      return TensorType::kF32;
  }
}

// Row of the checkpoint that becomes row `row` of the file.
uint64_t source_row(const PlannedTensor& tensor, uint32_t rope_dim, uint64_t row) {
  if (tensor.interleaved_head == 0) return row;
  const uint64_t head = row / tensor.interleaved_head * tensor.interleaved_head, i = row % tensor.interleaved_head;
  if (i >= rope_dim) return row;
  return head + i / 2 + (i % 2 != 0 ? rope_dim / 2 : 0);
}

class Writer {
 public:
  Writer(int fd, const HfConfig& config) : fd_(fd), rope_dim_(config.rope_dim) {}

  Result<void> header(const Bytes& bytes) { return os::write_all(fd_, bytes, deadline()); }

  Result<void> tensor(const PlannedTensor& tensor, TensorType type) {
    written_ = 0;
    if (tensor.parts.empty()) {
      TIE_CHECK_OK(append_row(type, tensor.values, buffer_));
    }
    for (const SourceTensor& part : tensor.parts)
      TIE_CHECK_OK(part.quantised ? quantised_rows_of(tensor, *part.quantised, type)
                                  : rows_of(tensor, *part.plain, type));
    const uint64_t total = written_ + buffer_.size();
    buffer_.resize(buffer_.size() +
                   (model_files::kGgufAlignment - total % model_files::kGgufAlignment) % model_files::kGgufAlignment);
    return flush();
  }

 private:
  static Deadline deadline() { return Deadline::in_ms(kWriteDeadlineMs); }

  Result<void> rows_of(const PlannedTensor& tensor, const model_files::SafetensorsTensor& part, TensorType type) {
    // A bias that is rotated moves element by element: rows of one.
    const bool vector = part.shape.size() == 1;
    const uint64_t k = vector && tensor.interleaved_head == 0 ? part.shape[0] : (vector ? 1 : part.shape[1]);
    const uint64_t n = vector ? part.shape[0] / k : part.shape[0];
    row_.resize(k);
    for (uint64_t row = 0; row < n; ++row) {
      read_row(part, source_row(tensor, rope_dim_, row) * k, row_);
      for (float& f : row_) f += tensor.add_one ? 1.0f : 0.0f;
      TIE_CHECK_OK(append_row(type, row_, buffer_));
      if (buffer_.size() >= kFlushBytes) TIE_CHECK_OK(flush());
    }
    return {};
  }

  Result<void> quantised_rows_of(const PlannedTensor& tensor, const QuantisedMatrix& part, TensorType type) {
    const uint64_t k = tensor.dims[0], n = tensor.dims[1];
    const bool as_blocks = type_of_codes(tensor) == type;
    row_.resize(k);
    for (uint64_t row = 0; row < n; ++row) {
      const uint64_t from = source_row(tensor, rope_dim_, row);
      if (as_blocks) {
        TIE_CHECK_OK(part.append_blocks(from, type, buffer_));
      } else {
        part.read_row(from, row_);
        TIE_CHECK_OK(append_row(type, row_, buffer_));
      }
      if (buffer_.size() >= kFlushBytes) TIE_CHECK_OK(flush());
    }
    return {};
  }

  Result<void> flush() {
    TIE_CHECK_OK(os::write_all(fd_, buffer_, deadline()));
    written_ += buffer_.size();
    buffer_.clear();
    return {};
  }

  int fd_;
  uint32_t rope_dim_;
  uint64_t written_ = 0;
  Bytes buffer_;
  std::vector<float> row_;
};

Result<void> write_file(int fd, const HfConfig& config, const std::vector<PlannedTensor>& tensors,
                        const std::string& title, WeightFormat format) {
  model_files::GgufHeader header;
  write_metadata(config, title, header);
  for (const PlannedTensor& tensor : tensors) header.tensor(tensor.name, type_of(tensor, format), tensor.dims);
  Writer writer(fd, config);
  TIE_CHECK_OK(writer.header(header.bytes()));
  for (const PlannedTensor& tensor : tensors) {
    auto written = writer.tensor(tensor, type_of(tensor, format));
    if (!written) return std::unexpected(std::move(written.error()).context("tensor " + tensor.name));
  }
  return {};
}

}  // namespace

bool is_hf_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

Result<Imported> import_folder(const std::string& path, const std::string& out_path, WeightFormat format) {
  TIE_TRY(const HfFolder folder, HfFolder::open(path));
  TIE_TRY(const HfConfig config, read_config(folder.config(), implied_head_dim(folder)));
  TIE_TRY(const std::vector<PlannedTensor> tensors, plan_tensors(folder, config));
  os::Fd fd(::open(out_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return fail(Code::kIo, out_path + ": " + std::strerror(errno));
  std::string title = std::filesystem::path(path).filename();
  if (title.empty()) title = std::filesystem::path(path).parent_path().filename();
  auto written = write_file(fd.get(), config, tensors, title, format);
  if (!written) {
    ::unlink(out_path.c_str());
    return std::unexpected(std::move(written.error()));
  }
  TIE_TRY(const size_t bytes, os::file_size(fd.get()));
  return Imported{config.family->architecture, config.context, config.n_vocab, bytes};
}

}  // namespace tie::model_import
