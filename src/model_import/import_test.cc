// Folders that must be refused with a reason, and shards that must give the same file as one.
#include "model_import/import.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "model_import/hf_config.h"
#include "model_import/testing/hf_folder_writer.h"

namespace tie::model_import {
namespace {

namespace fs = std::filesystem;
using testing::Shapes;
using testing::write_folder;
using testing::write_text;

nlohmann::json llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 32},
          {"intermediate_size", 64},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"vocab_size", 40},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", true},
          {"hidden_act", "silu"}};
}

Shapes llama_shapes() {
  const std::string p = "model.layers.0.";
  return {{"model.embed_tokens.weight", {40, 32}},   {"model.norm.weight", {32}},
          {p + "input_layernorm.weight", {32}},      {p + "post_attention_layernorm.weight", {32}},
          {p + "self_attn.q_proj.weight", {32, 32}}, {p + "self_attn.k_proj.weight", {16, 32}},
          {p + "self_attn.v_proj.weight", {16, 32}}, {p + "self_attn.o_proj.weight", {32, 32}},
          {p + "mlp.gate_proj.weight", {64, 32}},    {p + "mlp.up_proj.weight", {64, 32}},
          {p + "mlp.down_proj.weight", {32, 64}}};
}

struct Import : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / ("tie_import_test." + std::to_string(::getpid()));
  void TearDown() override { fs::remove_all(folder); }

  // The reason, or "imported".
  std::string outcome() {
    const auto done = import_folder(folder, folder / "out.gguf", WeightFormat::kKeep);
    EXPECT_EQ(done.has_value(), fs::exists(folder / "out.gguf")) << "a refused import leaves nothing behind";
    fs::remove(folder / "out.gguf");
    return done ? "imported" : done.error().message;
  }
  std::string outcome_with(const nlohmann::json& changes) {
    nlohmann::json config = llama_config();
    config.update(changes);
    write_folder(folder, config, llama_shapes());
    return outcome();
  }
};

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(Import, ShardsGiveTheSameFileAsOne) {
  write_folder(folder / "one", llama_config(), llama_shapes());
  write_folder(folder / "many", llama_config(), llama_shapes(), 3);
  fs::create_directories(folder / "a");
  fs::create_directories(folder / "b");
  ASSERT_TRUE(import_folder(folder / "one", folder / "one.gguf", WeightFormat::kQ8_0));
  const auto many = import_folder(folder / "many", folder / "many.gguf", WeightFormat::kQ8_0);
  ASSERT_TRUE(many) << many.error().message;
  std::string a = bytes_of(folder / "one.gguf"), b = bytes_of(folder / "many.gguf");
  const size_t title_a = a.find("one"), title_b = b.find("many");
  ASSERT_NE(title_a, std::string::npos);
  ASSERT_NE(title_b, std::string::npos);
  EXPECT_EQ(a.substr(a.size() - 4096), b.substr(b.size() - 4096));
  EXPECT_EQ(many->context_tokens, 64u);
}

TEST_F(Import, NamesWhatItCannotCompute) {
  EXPECT_EQ(outcome_with(nlohmann::json::object()), "imported");
  EXPECT_NE(outcome_with({{"architectures", {"GPT2LMHeadModel"}}}).find("GPT2LMHeadModel"), std::string::npos);
  EXPECT_NE(outcome_with({{"hidden_act", "relu"}}).find("relu"), std::string::npos);
  EXPECT_NE(outcome_with({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}).find("dynamic"),
            std::string::npos);
  EXPECT_NE(outcome_with({{"quantization_config", {{"quant_method", "hqq"}}}}).find("hqq"), std::string::npos);
  EXPECT_NE(outcome_with({{"quantization_config", {{"bits", 4}}}}).find("quantised"), std::string::npos);
  EXPECT_NE(outcome_with({{"quantization_config", 4}}).find("quantization_config"), std::string::npos);
  EXPECT_NE(outcome_with({{"hidden_size", 64}}).find("shape"), std::string::npos);
  EXPECT_NE(outcome_with({{"hidden_size", -1}}).find("hidden_size"), std::string::npos);
  EXPECT_NE(outcome_with({{"num_attention_heads", 0}}).find("num_attention_heads"), std::string::npos);
  EXPECT_NE(outcome_with({{"head_dim", 1u << 29}}).find("out of range"), std::string::npos);
  EXPECT_NE(outcome_with({{"tie_word_embeddings", false}}).find("lm_head.weight is missing"), std::string::npos);
}

TEST_F(Import, RefusesTensorsThatNobodyAskedFor) {
  Shapes shapes = llama_shapes();
  shapes["model.layers.0.self_attn.o_proj.bias"] = {32};
  write_folder(folder, llama_config(), shapes);
  EXPECT_NE(outcome().find("o_proj.bias"), std::string::npos);
  shapes = llama_shapes();
  shapes["lm_head.weight"] = {40, 32};  // stored although tied: the embedding counts
  write_folder(folder, llama_config(), shapes);
  EXPECT_EQ(outcome(), "imported");
}

TEST_F(Import, RefusesIndexesThatPointElsewhere) {
  write_folder(folder, llama_config(), llama_shapes(), 2);
  EXPECT_EQ(outcome(), "imported");
  for (const char* file : {"../part-0.safetensors", "/etc/passwd", ".hidden.safetensors", "model.bin", ""}) {
    write_text(folder / "model.safetensors.index.json", nlohmann::json{{"weight_map", {{"a", file}}}}.dump());
    EXPECT_NE(outcome().find("no plain file"), std::string::npos) << file;
  }
  write_text(folder / "model.safetensors.index.json", R"({"weight_map": {"a": "part-0.safetensors"}})");
  EXPECT_NE(outcome().find("does not hold"), std::string::npos);
  write_text(folder / "model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_NE(outcome().find("gone.safetensors"), std::string::npos);
}

TEST_F(Import, RefusesNumbersThatAreNone) {
  write_folder(folder, llama_config(), llama_shapes());
  std::string file = bytes_of(folder / "model.safetensors");
  const uint32_t nan = 0x7fc00000;
  file.replace(file.size() - 4, 4, reinterpret_cast<const char*>(&nan), 4);
  write_text(folder / "model.safetensors", file);
  EXPECT_NE(outcome().find("finite"), std::string::npos);
}

TEST_F(Import, AnEmptyFolderSaysWhatIsMissing) {
  fs::create_directories(folder);
  EXPECT_NE(outcome().find("config.json"), std::string::npos);
  write_text(folder / "config.json", llama_config().dump());
  EXPECT_NE(outcome().find("model.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace tie::model_import
