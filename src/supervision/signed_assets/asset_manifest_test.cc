#include "supervision/signed_assets/asset_manifest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "crypto/ed25519.h"
#include "crypto/ed25519_pem.h"

namespace tie::assets {
namespace {

namespace fs = std::filesystem;

struct SignedAssetsTest : ::testing::Test {
  std::string folder = (fs::temp_directory_path() / ("tie-signed-" + random_hex(6))).string();
  crypto::Ed25519KeyPair operator_key = crypto::ed25519_generate();
  SignedAssetsTest() {
    write("models/m/weights.gguf", "weights");
    write("models/m/model.toml", "context_tokens = 8");
    write("prompts/p.json", "{}");
  }
  ~SignedAssetsTest() override { fs::remove_all(folder); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(folder + "/" + path).parent_path());
    std::ofstream(folder + "/" + path, std::ios::binary) << text;
  }
  Error refusal() const {
    auto verified = verify_assets(folder, operator_key.public_key);
    return verified ? Error{Code::kOk, ""} : verified.error();
  }
  void sign() const { ASSERT_TRUE(sign_assets(folder, operator_key.seed.view())); }
};

TEST_F(SignedAssetsTest, WhatWasSignedIsAccepted) {
  sign();
  auto verified = verify_assets(folder, operator_key.public_key);
  ASSERT_TRUE(verified) << verified.error().message;
  EXPECT_EQ(verified->files().size(), 3u);
  EXPECT_TRUE(verified->check("prompts/p.json", crypto::sha256(as_bytes("{}"))));
}

TEST_F(SignedAssetsTest, UnsignedAssetsAreRefused) {
  EXPECT_EQ(refusal().code, Code::kPermissionDenied);
  EXPECT_NE(refusal().message.find("not signed"), std::string::npos);
  sign();
  fs::remove(folder + "/manifest.sig");
  EXPECT_NE(refusal().message.find("not signed"), std::string::npos);
}

TEST_F(SignedAssetsTest, AnotherKeysSignatureAndAChangedManifestAreRefused) {
  auto other = crypto::ed25519_generate();
  ASSERT_TRUE(sign_assets(folder, other.seed.view()));
  EXPECT_NE(refusal().message.find("not that of this node's operator"), std::string::npos);
  sign();
  std::ofstream(folder + "/manifest", std::ios::app) << std::string(64, 'a') << "  prompts/q.json\n";
  EXPECT_EQ(refusal().code, Code::kPermissionDenied);
}

TEST_F(SignedAssetsTest, AChangedByteAMissingAndAnAddedFileAreNamed) {
  sign();
  write("models/m/weights.gguf", "Weights");
  EXPECT_NE(refusal().message.find("models/m/weights.gguf is not the file that was signed"), std::string::npos);
  write("models/m/weights.gguf", "weights");
  EXPECT_EQ(refusal().code, Code::kOk);
  fs::remove(folder + "/prompts/p.json");
  EXPECT_NE(refusal().message.find("prompts/p.json is in the signed manifest and missing"), std::string::npos);
  write("prompts/p.json", "{}");
  write("prompts/extra.json", "{}");
  EXPECT_NE(refusal().message.find("prompts/extra.json is not in the signed manifest"), std::string::npos);
}

TEST_F(SignedAssetsTest, AHostileManifestIsRefusedLineByLine) {
  std::string digest(64, 'a');
  const std::vector<std::string> hostile = {std::string(),
                                            digest + "  models/m/x",
                                            digest + " models/m/x\n",
                                            digest + "  /etc/passwd\n",
                                            digest + "  models/../../etc/passwd\n",
                                            digest + "  models//x\n",
                                            digest + "  models/\n",
                                            digest + "  other/x\n",
                                            std::string(64, 'g') + "  models/x\n",
                                            std::string(64, 'A') + "  models/x\n",
                                            digest + "  models/b\n" + digest + "  models/a\n",
                                            digest + "  models/a\n" + digest + "  models/a\n",
                                            digest + "  models/a\x01\n",
                                            "aa  models/x\n"};
  for (const std::string& text : hostile) EXPECT_EQ(AssetManifest::parse(text).error().code, Code::kCorrupt) << text;
  EXPECT_TRUE(AssetManifest::parse(digest + "  models/a\n" + digest + "  models/b/c\n"));
}

TEST_F(SignedAssetsTest, KeysAreKeptInTheFormThatOpensslKnows) {
  std::string pem = crypto::ed25519_public_to_pem(operator_key.public_key);
  EXPECT_TRUE(pem.starts_with("-----BEGIN PUBLIC KEY-----\n"));
  std::ofstream(folder + "/key.pub") << pem;
  auto read = read_public_key(folder + "/key.pub");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, operator_key.public_key);
  SecretBytes secret = crypto::ed25519_seed_to_pem(operator_key.seed.view());
  auto seed = crypto::ed25519_seed_from_pem(as_text(secret.view()));
  ASSERT_TRUE(seed);
  EXPECT_TRUE(std::ranges::equal(seed->view(), operator_key.seed.view()));
  EXPECT_EQ(
      crypto::ed25519_public_from_pem("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n").error().code,
      Code::kCorrupt);
  EXPECT_EQ(crypto::ed25519_seed_from_pem(pem).error().code, Code::kCorrupt) << "a public key is no private one";
  // Of another kind: RFC 8410's X25519 example.
  EXPECT_EQ(crypto::ed25519_public_from_pem("-----BEGIN PUBLIC KEY-----\n"
                                            "MCowBQYDK2VuAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
                                            "-----END PUBLIC KEY-----\n")
                .error()
                .code,
            Code::kCorrupt);
}

}  // namespace
}  // namespace tie::assets
