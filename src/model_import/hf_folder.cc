#include "model_import/hf_folder.h"

#include <fmt/format.h>

#include <set>

#include "os/fd.h"

namespace tie::model_import {
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 1024;

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' && name.ends_with(".safetensors") &&
         name.find_first_of("/\\") == std::string::npos;
}

}  // namespace

Result<HfFolder> HfFolder::open(const std::string& path) {
  HfFolder out;
  out.path_ = path;
  TIE_TRY(const std::string config, out.text_file(kConfigFile, kMaxConfigBytes));
  if (config.empty()) return fail(Code::kNotFound, path + " holds no config.json");
  TIE_TRY(out.config_, model_files::parse_json_object(config, kConfigFile, {kMaxConfigBytes, 16}));
  TIE_TRY(const std::string index, out.text_file(kIndexFile, kMaxIndexBytes));
  if (index.empty()) {
    TIE_CHECK_OK(out.add_shard(kWeightsFile));
    return out;
  }
  TIE_CHECK_OK(out.add_indexed_shards());
  return out;
}

Result<void> HfFolder::add_indexed_shards() {
  TIE_TRY(const std::string text, text_file(kIndexFile, kMaxIndexBytes));
  TIE_TRY(const nlohmann::json index, model_files::parse_json_object(text, kIndexFile, {kMaxIndexBytes, 8}));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty())
    return fail(Code::kCorrupt, std::string(kIndexFile) + " has no weight_map");
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get<std::string>()))
      return fail(Code::kCorrupt, fmt::format("{} names no plain file for {}", kIndexFile, tensor.substr(0, 80)));
    files.insert(file.get<std::string>());
  }
  if (files.size() > kMaxShards)
    return fail(Code::kTooLarge, fmt::format("{} names more than {} files", kIndexFile, kMaxShards));
  std::map<std::string, size_t> shard_of;
  for (const std::string& file : files) {
    shard_of[file] = shards_.size();
    TIE_CHECK_OK(add_shard(file));
  }
  for (const auto& [tensor, file] : map->items()) {
    const auto found = by_name_.find(tensor);
    if (found == by_name_.end() || found->second.shard != shard_of[file.get<std::string>()])
      return fail(Code::kCorrupt, fmt::format("{} does not hold tensor {}", file.get<std::string>(), tensor));
  }
  return {};
}

Result<void> HfFolder::add_shard(const std::string& file) {
  auto mapping = os::Mapping::file_read_only(path_ + "/" + file);
  if (!mapping && mapping.error().code == Code::kNotFound)
    return fail(Code::kNotFound, fmt::format("{} holds no {}", path_, file));
  if (!mapping) return std::unexpected(std::move(mapping.error()));
  const ByteView bytes(reinterpret_cast<const uint8_t*>(mapping->bytes().data()), mapping->size());
  auto shard = model_files::Safetensors::parse(bytes);
  if (!shard) return std::unexpected(std::move(shard.error()).context(file));
  for (size_t i = 0; i < shard->tensors().size(); ++i)
    if (!by_name_.emplace(shard->tensors()[i].name, Place{shards_.size(), i}).second)
      return fail(Code::kCorrupt, fmt::format("tensor {} is in two files", shard->tensors()[i].name));
  mappings_.push_back(std::move(*mapping));
  shards_.push_back(std::move(*shard));
  return {};
}

const model_files::SafetensorsTensor* HfFolder::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &shards_[found->second.shard].tensors()[found->second.tensor];
}

std::vector<std::string_view> HfFolder::names() const {
  std::vector<std::string_view> out;
  for (const auto& [name, place] : by_name_) out.push_back(name);
  return out;
}

Result<std::string> HfFolder::text_file(const char* name, size_t max_bytes) const {
  auto bytes = os::read_file(path_ + "/" + name, max_bytes);
  if (!bytes && bytes.error().code == Code::kNotFound) return std::string();
  if (!bytes) return std::unexpected(std::move(bytes.error()));
  return std::string(as_text(*bytes));
}

}  // namespace tie::model_import
