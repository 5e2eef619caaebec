#include "supervision/model_owner/model_record.h"

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>

#include "inference/bones/cuda/gpu_numbers.h"
#include "inference/bones/kv_layout.h"
#include "os/fd.h"
#include "supervision/model_owner/model_identity.h"

namespace tie::owner {
namespace {

Result<void> read_grid(const toml::table& record, bones::RankPlace& out) {
  for (auto [name, value] : {std::pair{"ranks", &out.tensor_ranks}, {"stages", &out.stages}}) {
    if (!record.contains(name)) continue;
    const int64_t n = record[name].value_or(int64_t{0});
    if (n < 1 || n > bones::kMaxRanks)
      return fail(Code::kBadRequest, std::string(name) + " must be a number from 1 to 64");
    *value = static_cast<uint32_t>(n);
  }
  return {};
}

Result<void> read_device(const toml::table& record, DeviceWish& out) {
  if (!record.contains("device")) return {};
  const std::string wish = record["device"].value_or(std::string());
  if (wish != "cpu" && wish != "cuda" && wish != "auto")
    return fail(Code::kBadRequest, "device must be \"cpu\", \"cuda\" or \"auto\"");
  out = wish == "cpu" ? DeviceWish::kCpu : wish == "cuda" ? DeviceWish::kCuda : DeviceWish::kAuto;
  return {};
}

// In a model that goes to no GPU they only have to be well-formed: so it can be sent to the CPU for a while.
Result<void> read_gpus(const toml::table& record, ModelRecord& out) {
  if (!record.contains("gpus")) return {};
  const toml::array* named = record["gpus"].as_array();
  if (named == nullptr) return fail(Code::kBadRequest, "gpus must be a list of numbers, as [2, 3]");
  for (const toml::node& item : *named) {
    const int64_t number = item.value_exact<int64_t>().value_or(-1);
    if (number < 0 || number >= bones::cuda::kMostGpus)
      return fail(Code::kBadRequest, "gpus holds numbers from 0 to 31, the N of /dev/nvidiaN");
    if (std::ranges::find(out.gpus, number) != out.gpus.end())
      return fail(Code::kBadRequest,
                  "gpus names " + std::to_string(number) + " twice: each rank needs a GPU of its own");
    out.gpus.push_back(static_cast<uint32_t>(number));
  }
  if (out.device != DeviceWish::kCpu && out.gpus.size() != out.grid.count())
    return fail(Code::kBadRequest, "gpus names " + std::to_string(out.gpus.size()) + ", and the model has " +
                                       std::to_string(out.grid.count()) + " ranks (ranks x stages): one for each");
  return {};
}

Result<void> read_kv_cache(const toml::table& record, std::string& out) {
  if (!record.contains("kv_cache")) return {};
  out = record["kv_cache"].value_or(std::string());
  if (auto known = bones::kv_type_named(out); !known)
    return std::unexpected(std::move(known.error()).context("kv_cache"));
  return {};
}

Result<void> read_gpu_kernels(const toml::table& record, bool& out) {
  if (!record.contains("gpu_fast_kernels")) return {};
  const auto said = record["gpu_fast_kernels"].value_exact<bool>();
  if (!said) return fail(Code::kBadRequest, "gpu_fast_kernels must be true or false");
  out = *said;
  return {};
}

Result<ModelRecord> of_table(const toml::table& record) {
  ModelRecord out;
  TIE_CHECK_OK(read_grid(record, out.grid));
  TIE_CHECK_OK(read_device(record, out.device));
  TIE_CHECK_OK(read_gpus(record, out));
  TIE_CHECK_OK(read_kv_cache(record, out.kv_cache));
  TIE_CHECK_OK(read_gpu_kernels(record, out.gpu_fast_kernels));
  return out;
}

}  // namespace

std::string ModelRecord::summary() const {
  std::string out;
  if (!grid.alone()) out += std::to_string(grid.tensor_ranks) + "x" + std::to_string(grid.stages) + "\n";
  if (device != DeviceWish::kCpu) out += device == DeviceWish::kCuda ? "cuda\n" : "auto\n";
  for (const uint32_t gpu : gpus) out += "gpu " + std::to_string(gpu) + "\n";
  if (!kv_cache.empty()) out += "kv " + kv_cache + "\n";
  if (!gpu_fast_kernels) out += "portable\n";
  return out;
}

Result<ModelRecord> read_model_record(const std::string& folder) {
  const std::string path = folder + "/" + kRecordFile;
  auto text = os::read_file(path, kMaxRecordBytes);
  if (!text && text.error().code == Code::kNotFound) return ModelRecord();
  if (!text) return std::unexpected(std::move(text.error()));
  auto parsed = toml::parse(as_text(*text));
  if (!parsed) return fail(Code::kCorrupt, path + ": " + std::string(parsed.error().description()));
  auto record = of_table(parsed.table());
  if (!record) return std::unexpected(std::move(record.error()).context(path));
  return record;
}

}  // namespace tie::owner
