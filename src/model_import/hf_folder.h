// A model folder as Hugging Face publishes it: config.json, model.safetensors or shards named by
// model.safetensors.index.json, tokenizer.json. Files are mapped; views live as long as the object. Called by the
// importer; one thread. Hostile folders give an error: an index may name plain file names only, no tensor may be in two
// shards, every shard is read by model_files/safetensors.h. Limits: 1,024 shards, 1 MiB of config.json, 64 MiB of
// index.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "model_files/json_document.h"
#include "model_files/safetensors.h"
#include "os/memfd.h"

namespace tie::model_import {

class HfFolder {
 public:
  // kNotFound names the missing file.
  static Result<HfFolder> open(const std::string& path);

  const std::string& path() const { return path_; }
  const nlohmann::json& config() const { return config_; }
  const model_files::SafetensorsTensor* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Every tensor's name, ascending.
  std::vector<std::string_view> names() const;
  // Text of a small file beside the weights; empty when there is none. kTooLarge.
  Result<std::string> text_file(const char* name, size_t max_bytes) const;

 private:
  Result<void> add_shard(const std::string& file);
  Result<void> add_indexed_shards();

  struct Place {
    size_t shard, tensor;
  };
  std::string path_;
  nlohmann::json config_;
  std::vector<os::Mapping> mappings_;
  std::vector<model_files::Safetensors> shards_;
  std::map<std::string, Place, std::less<>> by_name_;
};

}  // namespace tie::model_import
