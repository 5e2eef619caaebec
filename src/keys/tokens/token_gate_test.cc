#include "keys/tokens/token_gate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "keys/tokens/testing.h"
#include "os/fd.h"

namespace tie::tokens {
namespace {

using testing::Issuer;

class Gate : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    issuer_ = new Issuer;
    other_ = new Issuer;
  }
  static void TearDownTestSuite() {
    delete issuer_;
    delete other_;
  }
  Code refusal(ByteView token, int64_t now = 150) const {
    auto judged = gate_.judge(token, now);
    return judged ? Code::kOk : judged.error().code;
  }
  static inline const Issuer *issuer_ = nullptr, *other_ = nullptr;
  TokenGate gate_{issuer_->file(100, 200), Bytes(kContextBytes, 7)};
};

TEST_F(Gate, AcceptsATokenOfItsIssuerForItsChallenge) {
  const Bytes token = issuer_->token(gate_.challenge());
  auto judged = gate_.judge(token, 150);
  ASSERT_TRUE(judged);
  EXPECT_EQ(judged->key_id, issuer_->key.public_key().key_id());
  EXPECT_EQ(judged->not_after_s, 200);
  EXPECT_EQ(judged->input, Bytes(token.begin(), token.begin() + kTokenInputBytes));
}

TEST_F(Gate, RefusesEveryOtherTokenWithOneError) {
  const Bytes token = issuer_->token(gate_.challenge());
  EXPECT_EQ(refusal(other_->token(gate_.challenge())), Code::kUnauthenticated) << "another issuer's key";
  const TokenGate elsewhere(issuer_->file(100, 200), Bytes(kContextBytes, 8));
  EXPECT_EQ(refusal(issuer_->token(elsewhere.challenge())), Code::kUnauthenticated) << "another node, another start";
  EXPECT_EQ(refusal(token, 99), Code::kUnauthenticated) << "before its time";
  EXPECT_EQ(refusal(token, 200), Code::kUnauthenticated) << "expired";
  EXPECT_EQ(refusal(token, 199), Code::kOk);
  for (size_t at : {0, 1, 2, 34, 66, 98, 353}) {
    Bytes forged = token;
    forged[at] ^= 1;
    EXPECT_EQ(refusal(forged), Code::kUnauthenticated) << "byte " << at;
  }
  Bytes longer = token;
  longer.push_back(0);
  EXPECT_EQ(refusal(longer), Code::kUnauthenticated);
  EXPECT_EQ(refusal({}), Code::kUnauthenticated);
}

TEST_F(Gate, ReadsItsFolderAndSaysWhenTokensAreOff) {
  const std::string folder = ::testing::TempDir() + "/gate-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  EXPECT_EQ(TokenGate::open(folder).error().code, Code::kNotFound);
  ASSERT_TRUE(os::write_file_atomic(folder + "/issuer", as_bytes(render(issuer_->file(100, 200)))));
  EXPECT_FALSE(TokenGate::open(folder)) << "no context";
  ASSERT_TRUE(os::write_file_atomic(folder + "/context", Bytes(31, 7)));
  EXPECT_EQ(TokenGate::open(folder).error().code, Code::kCorrupt);
  ASSERT_TRUE(os::write_file_atomic(folder + "/context", Bytes(kContextBytes, 7)));
  auto opened = TokenGate::open(folder);
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->challenge(), gate_.challenge());
  std::filesystem::remove_all(folder);
}

TEST_F(Gate, TheIssuerFileIsReadStrictly) {
  const std::string text = render(issuer_->file(100, 200));
  auto parsed = parse_issuer_file("tie token issuer 1\n# a comment\n" + text.substr(text.find('\n') + 1));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(render(*parsed), text);
  const std::string key = text.substr(text.find("key "));
  for (const std::string& bad :
       {std::string(), std::string("tie token issuer 2\n"), text + key, text + "name another\n", text + "what 1\n",
        "tie token issuer 1\nname a b\n" + key, "tie token issuer 1\n" + key,
        std::string("tie token issuer 1\nname a\n"), text.substr(0, text.size() - 4) + "x00\n",
        text.substr(0, text.size() - 5) + " 50\n", std::string(kMaxIssuerFileBytes + 1, '#')})
    EXPECT_FALSE(parse_issuer_file(bad)) << bad.substr(0, 40);
}

TEST_F(Gate, AtMostTwoKeysCountAtOnce) {
  IssuerFile file = issuer_->file(100, 200);
  file.keys.push_back(other_->public_half(150, 300));
  EXPECT_TRUE(parse_issuer_file(render(file)));
  const Issuer third;
  file.keys.push_back(third.public_half(199, 400));
  EXPECT_FALSE(parse_issuer_file(render(file)));
  file.keys.back().not_before_s = 200;
  EXPECT_TRUE(parse_issuer_file(render(file))) << "the first has ended by then";
}

}  // namespace
}  // namespace tie::tokens
