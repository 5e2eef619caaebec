#include "model_files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "model_files/json_document.h"

namespace tie::model_files {
namespace {

constexpr uint64_t kMaxHeaderBytes = 8 << 20;
constexpr size_t kMaxTensors = 1 << 16;
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxNameBytes = 512;

struct TypeInfo {
  const char* name;
  uint32_t bytes;
};
// Indexed by SafetensorsType.
constexpr TypeInfo kTypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                               {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                               {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};

std::optional<SafetensorsType> type_of(const std::string& name) {
  for (size_t i = 0; i < std::size(kTypes); ++i)
    if (name == kTypes[i].name) return static_cast<SafetensorsType>(i);
  return std::nullopt;
}

std::unexpected<Error> corrupt(std::string_view name, const char* what) {
  return fail(Code::kCorrupt, fmt::format("tensor {} {}", name.substr(0, 80), what));
}

struct Range {
  uint64_t begin = 0, end = 0;
};

Result<Range> range_of(const std::string& name, const nlohmann::json& entry) {
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned())
    return corrupt(name, "has no pair of data_offsets");
  return Range{(*offsets)[0].get<uint64_t>(), (*offsets)[1].get<uint64_t>()};
}

// Everything but the data view; checks that the byte range is as long as type and shape demand.
Result<SafetensorsTensor> read_entry(const std::string& name, const nlohmann::json& entry, const Range& range) {
  const auto dtype = entry.find("dtype"), shape = entry.find("shape");
  if (dtype == entry.end() || !dtype->is_string()) return corrupt(name, "has no dtype");
  if (shape == entry.end() || !shape->is_array()) return corrupt(name, "has no shape");
  const auto type = type_of(dtype->get<std::string>());
  if (!type) return fail(Code::kUnsupportedFeature, fmt::format("tensor {} has an unknown dtype", name.substr(0, 80)));
  SafetensorsTensor tensor{name, *type, {}, {}};
  if (shape->size() > kMaxDims) return corrupt(name, "has more than 8 dimensions");
  uint64_t bytes = kTypes[static_cast<size_t>(*type)].bytes;
  for (const auto& dim : *shape) {
    if (!dim.is_number_unsigned()) return corrupt(name, "has a dimension that is no whole number");
    tensor.shape.push_back(dim.get<uint64_t>());
    if (__builtin_mul_overflow(bytes, tensor.shape.back(), &bytes)) return corrupt(name, "has a size that overflows");
  }
  if (range.begin > range.end || range.end - range.begin != bytes)
    return corrupt(name, "has data_offsets that do not fit its dtype and shape");
  return tensor;
}

Result<std::map<std::string, std::string>> read_metadata(const nlohmann::json& entry) {
  std::map<std::string, std::string> out;
  if (!entry.is_object()) return fail(Code::kCorrupt, "__metadata__ is not an object");
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) return fail(Code::kCorrupt, "__metadata__ holds something that is no string");
    out.emplace(key, value.get<std::string>());
  }
  return out;
}

}  // namespace

const char* safetensors_type_name(SafetensorsType type) {
  return kTypes[static_cast<size_t>(type)].name;
}
uint32_t safetensors_element_bytes(SafetensorsType type) {
  return kTypes[static_cast<size_t>(type)].bytes;
}

Result<Safetensors> Safetensors::parse(ByteView file) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) return fail(Code::kCorrupt, "the file is shorter than a safetensors header");
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes)
    return fail(Code::kTooLarge, fmt::format("a header of {} bytes, the limit is {}", header_bytes, kMaxHeaderBytes));
  if (header_bytes > file.size() - sizeof header_bytes) return fail(Code::kCorrupt, "the header ends after the file");
  const std::string_view text = as_text(file.subspan(sizeof header_bytes, header_bytes));
  TIE_TRY(nlohmann::json header, parse_json_object(text, "the safetensors header", {kMaxHeaderBytes, 8}));
  if (header.size() > kMaxTensors) return fail(Code::kTooLarge, "the header names more than 65,536 tensors");

  Safetensors out;
  std::vector<std::pair<Range, SafetensorsTensor>> found;
  for (auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      TIE_TRY(out.metadata_, read_metadata(entry));
      continue;
    }
    if (name.empty() || name.size() > kMaxNameBytes) return corrupt(name, "has an empty or overlong name");
    if (!entry.is_object()) return corrupt(name, "is not described by an object");
    TIE_TRY(const Range range, range_of(name, entry));
    TIE_TRY(SafetensorsTensor tensor, read_entry(name, entry, range));
    found.emplace_back(range, std::move(tensor));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });
  // One behind the other and to the end of the file: so none overlaps another and no byte is unaccounted for.
  const ByteView data = file.subspan(sizeof header_bytes + header_bytes);
  uint64_t end = 0;
  for (auto& [range, tensor] : found) {
    if (range.begin != end) return corrupt(tensor.name, "does not start where the one before it ends");
    if (range.end > data.size()) return corrupt(tensor.name, "ends after the file");
    tensor.data = data.subspan(range.begin, range.end - range.begin);
    end = range.end;
    out.by_name_.emplace(tensor.name, out.tensors_.size());
    out.tensors_.push_back(std::move(tensor));
  }
  if (end != data.size()) return fail(Code::kCorrupt, "the file holds bytes that belong to no tensor");
  return out;
}

const SafetensorsTensor* Safetensors::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace tie::model_files
