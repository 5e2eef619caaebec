#include "keys/token_issuer/issuer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/random.h"
#include "keys/token_issuer/issuer_folder.h"
#include "keys/tokens/token_gate.h"

namespace tie::issuer {
namespace {

constexpr int64_t kHourMs = 3'600'000;

class Issuing : public ::testing::Test {
 protected:
  ~Issuing() override { std::filesystem::remove_all(folder_); }
  void SetUp() override {
    ASSERT_TRUE(create_folder(folder_, "issuer.example:8124", 1000, 100'000));
    auto key = add_credential(folder_, "alice", 3);
    ASSERT_TRUE(key) << key.error().message;
    api_key_ = *key;
    issuer_ = std::make_unique<Issuer>(*load_keys(folder_), *load_credentials(folder_));
    gate_ = std::make_unique<tokens::TokenGate>(*load_public(folder_), Bytes(tokens::kContextBytes, 7));
  }
  const tokens::BlindRsaPublicKey& key() const { return gate_->issuer().keys[0].key; }
  int status(std::string_view api_key, ByteView request, int64_t now_ms = 2'000'000) {
    return issuer_->issue(api_key, request, now_ms).status;
  }
  Bytes request() const { return tokens::PendingToken::begin(key(), gate_->challenge())->request(); }

  const std::string folder_ = std::filesystem::temp_directory_path().string() + "/tie-issuer-" + random_hex(8);
  std::string api_key_;
  std::unique_ptr<Issuer> issuer_;
  std::unique_ptr<tokens::TokenGate> gate_;
};

TEST_F(Issuing, ATokenFromTheFolderOpensANode) {
  auto pending = tokens::PendingToken::begin(key(), gate_->challenge());
  Answer answer = issuer_->issue(api_key_, pending->request(), 2'000'000);
  ASSERT_EQ(answer.status, 200) << answer.sentence;
  auto token = pending->finish(key(), answer.response);
  ASSERT_TRUE(token) << token.error().message;
  EXPECT_TRUE(gate_->judge(*token, 2000));
}

TEST_F(Issuing, AnswersWithTheStatusOfEachFault) {
  EXPECT_EQ(status("another key", request()), 401);
  EXPECT_EQ(status("", request()), 401);
  Bytes cut = request();
  cut.pop_back();
  EXPECT_EQ(status(api_key_, cut), 400);
  EXPECT_EQ(status(api_key_, {}), 400);
  Bytes other_type = request();
  other_type[1] = 1;
  EXPECT_EQ(status(api_key_, other_type), 422);
  Bytes other_key = request();
  other_key[2] ^= 1;
  EXPECT_EQ(status(api_key_, other_key), 422);
  Bytes too_large = request();
  std::fill(too_large.begin() + 3, too_large.end(), 0xff);
  EXPECT_EQ(status(api_key_, too_large), 422);
  EXPECT_EQ(status(api_key_, request(), 999'000), 422) << "before the key counts";
  EXPECT_EQ(status(api_key_, request(), 101'000'000), 422) << "after it";
}

TEST_F(Issuing, ACredentialHasItsShareOfAnHourAndFaultsCostNothing) {
  EXPECT_EQ(status(api_key_, {}), 400);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(status(api_key_, request()), 200);
  EXPECT_EQ(status(api_key_, request()), 429);
  EXPECT_EQ(status(api_key_, request(), 2'000'000 + kHourMs / 3 + 1), 200) << "a third of an hour gives one more";
  EXPECT_EQ(status(api_key_, request(), 2'000'000 + kHourMs / 3 + 2), 429);
  // Reading the file again gives nobody a second share, and takes away who is no longer in it.
  issuer_->replace_credentials(*load_credentials(folder_));
  EXPECT_EQ(status(api_key_, request(), 2'000'000 + kHourMs / 3 + 3), 429);
  issuer_->replace_credentials({});
  EXPECT_EQ(status(api_key_, request(), 2'000'000 + 2 * kHourMs), 401);
}

TEST_F(Issuing, ASecondKeyOverlapsAndAThirdWaits) {
  auto file = add_key(folder_, 2000, 100'000);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->keys.size(), 2u);
  EXPECT_EQ(file->keys[1].not_before_s, 101'000 - kKeyOverlapS);
  EXPECT_NE(file->keys[0].id.back(), file->keys[1].id.back()) << "requests name keys by the last byte";
  EXPECT_EQ(load_keys(folder_)->size(), 2u);
  file = add_key(folder_, 110'000, 100'000);  // the first has ended
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->keys.size(), 2u);
  EXPECT_EQ(load_keys(folder_)->size(), 2u);
}

TEST_F(Issuing, TheFolderKeepsItsSecrets) {
  struct stat st{};
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/keys")) {
    ASSERT_EQ(::stat(entry.path().c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
  }
  ASSERT_EQ(::stat((folder_ + "/credentials").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(create_folder(folder_, "issuer.example", 1000, 100).error().code, Code::kAlreadyExists);
  EXPECT_EQ(add_credential(folder_, "alice", 3).error().code, Code::kAlreadyExists);
  EXPECT_FALSE(add_credential(folder_, "a b", 3));
  EXPECT_FALSE(add_credential(folder_, "bob", 0));
}

TEST(Credentials, AreReadStrictly) {
  const std::string digest(64, 'a');
  EXPECT_EQ(parse_credentials("# nobody\n\n")->size(), 0u);
  EXPECT_EQ(parse_credentials("credential a " + digest + " 5\n")->front().tokens_per_hour, 5u);
  for (const std::string& bad :
       {"credential a " + digest, "credential a " + digest + " 0", "credential a " + digest + " 5 6",
        "credential a " + digest + " x", "other a " + digest + " 5", "credential a " + digest.substr(1) + " 5",
        "credential a/b " + digest + " 5", "credential a " + digest + " 1000001"})
    EXPECT_FALSE(parse_credentials(bad)) << bad;
}

}  // namespace
}  // namespace tie::issuer
