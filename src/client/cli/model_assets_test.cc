#include "client/cli/model_assets.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

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
    EXPECT_EQ(add_model(assets, "/dev/null", name).error().code, Code::kBadRequest) << name;
    EXPECT_EQ(remove_model(assets, name).error().code, Code::kBadRequest) << name;
  }
}

TEST_F(ModelAssetsTest, AFileThatIsNoModelLeavesNothingBehind) {
  fs::create_directories(assets);
  std::ofstream(assets / "x.gguf") << "GGUF?";
  EXPECT_FALSE(add_model(assets, assets / "x.gguf", ""));
  EXPECT_TRUE(fs::is_empty(assets / "models"));
}

TEST_F(ModelAssetsTest, AddsOnceAndRefusesOtherWeightsUnderTheName) {
  if (model_file().empty()) GTEST_SKIP() << "no SmolLM2 model file";
  auto added = add_model(assets, model_file(), "m");
  ASSERT_TRUE(added) << added.error().message;
  EXPECT_EQ(added->architecture, "llama");
  EXPECT_EQ(added->model_id_hex.size(), 64u);
  auto again = add_model(assets, model_file(), "m");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->model_id_hex, added->model_id_hex);
  EXPECT_TRUE(verify_model(assets, "m"));
  EXPECT_EQ(list_models(assets)->size(), 1u);

  fs::path other = assets / "other.gguf";
  fs::copy_file(model_file(), other);
  std::ofstream(other, std::ios::app) << 'x';
  EXPECT_EQ(add_model(assets, other, "m").error().code, Code::kAlreadyExists);
  EXPECT_TRUE(remove_model(assets, "m"));
  EXPECT_TRUE(list_models(assets)->empty());
}

}  // namespace
}  // namespace tie::cli
