#include "model_import/testing/hf_folder_writer.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/half_float.h"

namespace tie::model_import::testing {
namespace {

uint64_t fnv1a(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325;
  for (char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return h;
}

float unit(uint64_t name, uint64_t i) {
  uint64_t z = name + (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return static_cast<float>(static_cast<int64_t>(z >> 40) - (1 << 23)) * 0x1p-23f;
}

const char* word_of(Precision precision) {
  return precision == Precision::kF32 ? "F32" : precision == Precision::kF16 ? "F16" : "BF16";
}

void append_values(const std::vector<float>& values, Precision precision, Bytes& out) {
  for (float value : values) {
    if (precision == Precision::kF32) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
      out.insert(out.end(), bytes, bytes + sizeof value);
      continue;
    }
    const uint32_t bits = precision == Precision::kF16 ? float_to_half(value) : float_to_bf16(value);
    out.push_back(static_cast<uint8_t>(bits));
    out.push_back(static_cast<uint8_t>(bits >> 8));
  }
}

}  // namespace

std::vector<float> reference_weights(const std::string& name, const std::vector<uint64_t>& shape, bool gemma) {
  const bool norm = name.find("norm") != std::string::npos, bias = name.ends_with("bias");
  const bool wide = name.find("embed_tokens") != std::string::npos || name.find("lm_head") != std::string::npos;
  size_t n = 1;
  for (uint64_t d : shape) n *= d;
  const uint64_t seed = fnv1a(name);
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) {
    const float u = unit(seed, i);
    out[i] = norm ? u * 0.25f + (gemma ? 0.0f : 1.0f) : u * (bias ? 0.5f : wide ? 1.0f : 0.25f);
  }
  return out;
}

Bytes safetensors_file(const Shapes& shapes, bool gemma, Precision precision) {
  nlohmann::json header{{"__metadata__", {{"format", "pt"}}}};
  Bytes data;
  for (const auto& [name, shape] : shapes) {
    const std::vector<float> values = reference_weights(name, shape, gemma);
    const size_t begin = data.size();
    append_values(values, precision, data);
    header[name] = {{"dtype", word_of(precision)}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  Bytes out(sizeof length + text.size() + data.size());
  std::memcpy(out.data(), &length, sizeof length);
  std::memcpy(out.data() + sizeof length, text.data(), text.size());
  std::memcpy(out.data() + sizeof length + text.size(), data.data(), data.size());
  return out;
}

void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

void write_folder(const std::string& folder, const nlohmann::json& config, const Shapes& shapes, uint32_t shards,
                  Precision precision) {
  std::filesystem::create_directories(folder);
  write_text(folder + "/config.json", config.dump());
  const bool gemma = config.value("model_type", "").starts_with("gemma");
  std::vector<Shapes> parts(shards);
  uint32_t at = 0;
  nlohmann::json map;
  for (const auto& [name, shape] : shapes) {
    const uint32_t shard = at++ % shards;
    parts[shard][name] = shape;
    map[name] = "part-" + std::to_string(shard) + ".safetensors";
  }
  if (shards == 1) {
    write_text(folder + "/model.safetensors", as_text(safetensors_file(parts[0], gemma, precision)));
    return;
  }
  for (uint32_t i = 0; i < shards; ++i)
    write_text(folder + "/part-" + std::to_string(i) + ".safetensors",
               as_text(safetensors_file(parts[i], gemma, precision)));
  write_text(folder + "/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
}

}  // namespace tie::model_import::testing
