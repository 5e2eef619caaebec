// Compiles what a model's files say about text into the assets of the node: `tie model add` and the launcher call it
// once per model. Reads the files given and nothing else; no threads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "model_files/gguf.h"

namespace tie::text {

struct ModelAssets {
  Bytes tokenizer_image;
  std::string chat_template;  // empty: the model has none
  std::string architecture;   // general.architecture
  std::string name;           // general.name
  uint64_t context_length = 0;
  uint32_t vocab_size = 0;
  std::optional<int32_t> bos, eos;
};

Result<ModelAssets> compile_model_assets(const std::string& gguf_path);

// The image alone. GGUF: the metadata of an opened file. tokenizer.json: its text (at most 64 MB); `config_json`:
// tokenizer_config.json or empty.
Result<Bytes> compile_vocab_image(const model_files::Gguf& gguf);
Result<Bytes> compile_vocab_image_from_json(std::string_view tokenizer_json, std::string_view config_json = {});

}  // namespace tie::text
