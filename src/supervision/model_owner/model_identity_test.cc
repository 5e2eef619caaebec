#include "supervision/model_owner/model_identity.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "os/fd.h"

namespace tie::owner {
namespace {

TEST(ModelName, IsAPlainFolderName) {
  for (const char* good : {"smollm2-135m-instruct", "a", "Llama_3.1", "0x"})
    EXPECT_TRUE(valid_model_name(good)) << good;
  for (const char* bad : {"", ".", "..", ".hidden", "-x", "a/b", "a b", "a\nb", "ü"})
    EXPECT_FALSE(valid_model_name(bad)) << bad;
  EXPECT_FALSE(valid_model_name(std::string(65, 'a')));
  EXPECT_FALSE(valid_model_name(std::string_view("a\0b", 3)));
}

TEST(ModelId, ChangesWithEachOfItsParts) {
  ModelDigests base{};
  auto id = model_id(base);
  for (auto part : {&ModelDigests::weights, &ModelDigests::tokenizer, &ModelDigests::chat_template}) {
    ModelDigests changed = base;
    (changed.*part)[31] ^= 1;
    EXPECT_NE(model_id(changed), id);
  }
}

TEST(ModelId, OfAFolderIsTheHashOfItsFilesHashes) {
  char folder[] = "/tmp/tie-model-id-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  std::string at = folder;
  ASSERT_TRUE(os::write_file_atomic(at + "/" + kWeightsFile, as_bytes("weights")));
  EXPECT_FALSE(model_id_of_folder(at));  // no tokenizer yet
  ASSERT_TRUE(os::write_file_atomic(at + "/" + kTokenizerFile, as_bytes("tokenizer")));
  auto without_template = model_id_of_folder(at);
  ASSERT_TRUE(without_template) << without_template.error().message;
  auto expected = model_id(
      {crypto::sha256(as_bytes("weights")), crypto::sha256(as_bytes("tokenizer")), crypto::sha256(as_bytes(""))});
  EXPECT_EQ(*without_template, expected);
  ASSERT_TRUE(os::write_file_atomic(at + "/" + kTemplateFile, as_bytes("{{ x }}")));
  EXPECT_NE(*model_id_of_folder(at), expected);
}

}  // namespace
}  // namespace tie::owner
