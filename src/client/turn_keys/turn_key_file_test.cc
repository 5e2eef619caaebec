#include "client/turn_keys/turn_key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"
#include "inference.pb.h"
#include "os/fd.h"

namespace tie::client {
namespace {

constexpr crypto::PassphraseCost kCheap{.log2_n = 4};
const Bytes kWords = to_bytes("correct horse");

v1::InferenceRequest request(const std::string& canary) {
  v1::InferenceRequest out;
  out.set_model("m");
  v1::Message& message = *out.mutable_conversation()->add_messages();
  message.set_role("user");
  message.add_parts()->set_text(canary);
  return out;
}

struct TurnKeyFileTest : ::testing::Test {
  std::string path = testing::TempDir() + "tie_turn_keys_" + random_hex(8);
  ~TurnKeyFileTest() override {
    ::unlink(path.c_str());
    ::unlink((path + ".lock").c_str());
  }
};

TEST_F(TurnKeyFileTest, KeepsConversationsAcrossProcesses) {
  TurnKeyTable table, again;
  v1::InferenceRequest asked = request("hello"), next = request("hello");
  {
    auto file = TurnKeyFile::open(path, kWords, table, kCheap);
    ASSERT_TRUE(file) << file.error().message;
    table.begin({}, asked);
    ASSERT_TRUE(file->save(table));
  }
  ASSERT_TRUE(TurnKeyFile::open(path, kWords, again));
  again.begin({}, next);
  EXPECT_EQ(next.turn_key_read(), asked.turn_key_write());
  struct stat info{};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(TurnKeyFileTest, TwoThatKeepTheSameFileWouldLoseKeysSoTheSecondIsRefused) {
  TurnKeyTable mine, theirs;
  auto first = TurnKeyFile::open(path, kWords, mine, kCheap);
  ASSERT_TRUE(first) << first.error().message;
  auto second = TurnKeyFile::open(path, kWords, theirs, kCheap);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  EXPECT_NE(second.error().message.find("--turn-keys"), std::string::npos) << second.error().message;
  // A save replaces the file, and the lock still holds.
  ASSERT_TRUE(first->save(mine));
  EXPECT_EQ(TurnKeyFile::open(path, kWords, theirs, kCheap).error().code, Code::kAlreadyExists);
  first = fail(Code::kCancelled, "ended");
  EXPECT_TRUE(TurnKeyFile::open(path, kWords, theirs, kCheap));
}

TEST_F(TurnKeyFileTest, AWrongPassphraseAndAChangedFileAreRefusedInWords) {
  TurnKeyTable table;
  ASSERT_TRUE(TurnKeyFile::open(path, kWords, table, kCheap));
  auto wrong = TurnKeyFile::open(path, to_bytes("incorrect horse"), table);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kUnauthenticated);
  EXPECT_NE(wrong.error().message.find("passphrase"), std::string::npos);
  EXPECT_EQ(TurnKeyFile::open(path, {}, table).error().code, Code::kBadRequest);
  Bytes good = *os::read_file(path, 1 << 20);
  for (size_t at = 0; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= at < 20 ? 1 : 0x40;
    ASSERT_TRUE(os::write_file_atomic(path, bad));
    ASSERT_FALSE(TurnKeyFile::open(path, kWords, table)) << at;
  }
  ASSERT_TRUE(os::write_file_atomic(path, to_bytes("my shopping list, which is longer than the head of such a file. "
                                                   "It goes on and on and on.")));
  EXPECT_EQ(TurnKeyFile::open(path, kWords, table).error().code, Code::kCorrupt);
}

TEST_F(TurnKeyFileTest, AHostileCostIsRefusedBeforeItIsPaid) {
  TurnKeyTable table;
  ASSERT_TRUE(TurnKeyFile::open(path, kWords, table, kCheap));
  Bytes file = *os::read_file(path, 1 << 20);
  for (auto [at, value] : {std::pair<size_t, uint8_t>{11, 24}, {12, 0x7f}, {19, 200}, {11, 0}}) {
    Bytes bad = file;
    bad[at] = value;
    ASSERT_TRUE(os::write_file_atomic(path, bad));
    EXPECT_EQ(TurnKeyFile::open(path, kWords, table).error().code, Code::kOutOfRange) << at;
  }
}

TEST_F(TurnKeyFileTest, HoldsNeitherTextNorKeysInClearAndNoTwoWritingsAreAlike) {
  TurnKeyTable table;
  auto file = TurnKeyFile::open(path, kWords, table, kCheap);
  ASSERT_TRUE(file);
  v1::InferenceRequest asked = request("a canary sings");
  table.begin({}, asked);
  ASSERT_TRUE(file->save(table));
  Bytes first = *os::read_file(path, 1 << 20);
  ASSERT_TRUE(file->save(table));
  Bytes second = *os::read_file(path, 1 << 20);
  EXPECT_EQ(as_text(first).find("canary"), std::string::npos);
  EXPECT_EQ(as_text(first).find(asked.turn_key_write()), std::string::npos);
  EXPECT_NE(first, second);
  SecretBytes plain = table.serialize();
  EXPECT_EQ(as_text(plain.view()).find("canary"), std::string::npos);  // not even under the seal
}

TEST_F(TurnKeyFileTest, APlaceThatCannotBeWrittenIsToldAtOnce) {
  TurnKeyTable table;
  EXPECT_FALSE(TurnKeyFile::open("/nonexistent/place/keys", kWords, table, kCheap));
}

}  // namespace
}  // namespace tie::client
