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

// A name made from the file's: lower case, without .gguf; empty when nothing usable is left.
std::string model_name_of_file(const std::string& gguf_path);

// Compiles tokenizer and template out of the GGUF and installs all under `name` (empty: model_name_of_file). Hard-links
// the weights where it can. The same weights under the same name are compiled anew. Errors: kBadRequest (name),
// kAlreadyExists (other weights), and those of reading the model (unsupported quantisation, architecture, vocabulary).
Result<ModelRecord> add_model(const std::string& assets, const std::string& gguf_path, const std::string& name);
Result<std::vector<ModelRecord>> list_models(const std::string& assets);
// Hashes everything again. kCorrupt, naming the file, when it differs from model.toml. Cost: one pass over the weights.
Result<ModelRecord> verify_model(const std::string& assets, const std::string& name);
Result<void> remove_model(const std::string& assets, const std::string& name);

}  // namespace tie::cli
