// The model folders of a node's assets: models/NAME/{weights.gguf, tokenizer.img, template.jinja, model.toml}. Called
// by `tie model`. Reads and writes the file system; no network, no threads. A folder appears whole (written aside, then
// renamed) or not at all. Source: ARCHITECTURE.md, "Files".
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tie::cli {

struct ModelRecord {
  std::string name, architecture, model_id_hex, weights_sha256_hex;
  uint64_t context_tokens = 0, weights_bytes = 0;
  bool current = true;  // false: another build compiled its vocabulary, and this one cannot read that; add it again
};

// A name made from the file's or folder's: lower case, without .gguf; empty when nothing usable is left.
std::string model_name_of_file(const std::string& source);

struct AddModel {
  std::string source;                 // a GGUF file or a Hugging Face folder (model_sources.h)
  std::string name;                   // empty: made from the source's name
  uint64_t context_tokens = 0;        // 0: the model's own; at most that
  std::string template_file;          // replaces the model's chat template
  std::vector<std::string> sampling;  // KEY=VALUE defaults over those that the model recommends
  bool replace = false;               // another model under the same name gives way
  bool keep_precision = false;        // a folder's matrices stay as they are instead of becoming Q8_0
  std::string kv_cache;               // "f16", "bf16" or "q8"; empty: the model's usual
  std::string device;                 // "cpu", "cuda" or "auto"; empty: the CPU
  std::vector<uint32_t> gpus;         // with a GPU: the number of the one for each rank; empty: the first ones
  uint32_t ranks = 1, stages = 1;     // processes that divide each layer, and the layers among them; the owner packs so
};

// Compiles tokenizer and template and installs all under the name; weights are hard-linked where they can be. The same
// weights under the same name are compiled anew. Errors: kBadRequest (name, options), kAlreadyExists (other weights),
// and those of reading the model (unsupported quantisation, architecture, vocabulary).
Result<ModelRecord> add_model(const std::string& assets, const AddModel& request);
// The record's `kv_cache`; empty when it says nothing.
Result<std::string> kv_cache_of(const std::string& assets, const std::string& name);
Result<std::vector<ModelRecord>> list_models(const std::string& assets);
// Hashes everything again. kCorrupt, naming the file, when it differs from model.toml. Cost: one pass over the weights.
Result<ModelRecord> verify_model(const std::string& assets, const std::string& name);
Result<void> remove_model(const std::string& assets, const std::string& name);

}  // namespace tie::cli
