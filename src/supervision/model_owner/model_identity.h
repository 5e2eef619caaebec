// What names a model on this node: its folder's name, and its id over everything that decides its answers.
// Pure functions; called by tie-model-owner, by tools that prepare assets and by whoever states model ids in claims.
// Source: interface decisions, "Identities": model_id = SHA-256(weights file digest || tokenizer image digest || chat
// template digest).
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "crypto/sha256.h"

namespace tie::owner {

// Files of one model's asset folder.
inline constexpr const char* kWeightsFile = "weights.gguf";
inline constexpr const char* kTokenizerFile = "tokenizer.img";
inline constexpr const char* kTemplateFile = "template.jinja";
inline constexpr const char* kRecordFile = "model.toml";

// 1 to 64 characters of a-z A-Z 0-9 . _ -, the first a letter or digit: a name is also a directory and a part of socket
// paths.
bool valid_model_name(std::string_view name);

struct ModelDigests {
  crypto::Digest weights;
  crypto::Digest tokenizer;
  crypto::Digest chat_template;  // of the empty string when the model has no template
};
crypto::Digest model_id(const ModelDigests& digests);

// Reads and hashes the three files of an asset folder. kNotFound / kIo name the file. Cost: one pass over the weights
// (about 0.6 ms a MB).
Result<crypto::Digest> model_id_of_folder(const std::string& folder);

}  // namespace tie::owner
