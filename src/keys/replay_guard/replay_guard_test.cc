#include "keys/replay_guard/replay_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/random.h"

namespace tie::keys {
namespace {

struct ReplayGuardTest : ::testing::Test {
  std::string dir = (std::filesystem::temp_directory_path() / ("tie-replay-" + random_hex(8))).string();
  Bytes key = Bytes(32, 1);
  std::string file = dir + "/replay-" + to_hex(key);
  ~ReplayGuardTest() override { std::filesystem::remove_all(dir); }

  Result<ReplayGuard> guard(size_t max = 1000) { return ReplayGuard::open(dir, max); }
  static Bytes enc(int i) { return to_bytes("encapsulated key " + std::to_string(i)); }
  void fill(int count) {
    auto g = guard();
    ASSERT_TRUE(g.has_value() && g->open_key(key, true).has_value());
    for (int i = 0; i < count; ++i) ASSERT_TRUE(g->record(key, enc(i)).has_value());
  }
  void expect_lost() {
    auto g = guard();
    EXPECT_EQ(g->open_key(key, true).error().code, Code::kCorrupt);
    EXPECT_EQ(g->record(key, enc(0)).error().code, Code::kKeyUnknownOrExpired);
  }
  void change_byte(long at) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
    auto position = f.tellg();
    char c;
    f.get(c);
    f.seekp(position);
    f.put(static_cast<char>(c ^ 1));
  }
};

TEST_F(ReplayGuardTest, RefusesTheSameWrappedKeyTwice) {
  auto g = guard();
  ASSERT_TRUE(g->open_key(key, true).has_value());
  EXPECT_TRUE(g->record(key, enc(1)).has_value());
  EXPECT_EQ(g->record(key, enc(1)).error().code, Code::kReplayed);
  EXPECT_TRUE(g->record(key, enc(2)).has_value());
}

TEST_F(ReplayGuardTest, TheFingerprintCoversTheWholeKey) {
  auto g = guard();
  ASSERT_TRUE(g->open_key(key, true).has_value());
  Bytes a(1120, 9), b = a;
  b.back() ^= 1;
  EXPECT_TRUE(g->record(key, a).has_value());
  EXPECT_TRUE(g->record(key, b).has_value());
  EXPECT_EQ(g->record(key, a).error().code, Code::kReplayed);
}

TEST_F(ReplayGuardTest, RefusesTheSameWrappedKeyAfterAKill9) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t child = ::fork();
  if (child == 0) {
    auto g = guard();
    (void)g->open_key(key, true);
    for (int i = 0; i < 200; ++i) (void)g->record(key, enc(i));
    (void)!::write(ready[1], "x", 1);
    for (int i = 200;; ++i) (void)g->record(key, enc(i));  // killed in the middle of its work
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::usleep(2000);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  auto g = guard(1 << 20);
  ASSERT_TRUE(g.has_value()) << "the lock died with its holder";
  ASSERT_TRUE(g->open_key(key, false).has_value());
  EXPECT_GE(g->size(key), 200u);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(g->record(key, enc(i)).error().code, Code::kReplayed) << i;
  EXPECT_TRUE(g->record(key, enc(-1)).has_value());
}

TEST_F(ReplayGuardTest, ATornLastRecordIsCutOffAndTheRestStands) {
  fill(10);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 7);
  auto g = guard();
  ASSERT_TRUE(g->open_key(key, false).has_value());
  EXPECT_EQ(g->size(key), 9u);
  EXPECT_TRUE(g->record(key, enc(9)).has_value());
  EXPECT_EQ(g->record(key, enc(3)).error().code, Code::kReplayed);
}

TEST_F(ReplayGuardTest, RecordsWrittenAfterARestoreAreRestoredToo) {
  fill(3);
  {
    auto g = guard();
    ASSERT_TRUE(g->open_key(key, false).has_value());
    ASSERT_TRUE(g->record(key, enc(3)).has_value());
  }
  auto g = guard();
  ASSERT_TRUE(g->open_key(key, false).has_value());
  EXPECT_EQ(g->record(key, enc(3)).error().code, Code::kReplayed);
}

TEST_F(ReplayGuardTest, AnyChangedByteLosesTheKey) {
  fill(10);
  size_t size = std::filesystem::file_size(file);
  for (size_t at : {size_t{0}, size_t{20}, size_t{50}, size / 2, size - 1}) {
    change_byte(static_cast<long>(at));
    expect_lost();
    change_byte(static_cast<long>(at));  // back
  }
  auto g = guard();
  EXPECT_TRUE(g->open_key(key, false).has_value());
}

TEST_F(ReplayGuardTest, ARecordTakenOutOfTheMiddleLosesTheKey) {
  fill(10);
  std::ifstream in(file, std::ios::binary);
  std::string all((std::istreambuf_iterator<char>(in)), {});
  all.erase(all.size() - 5 * 40, 40);
  std::ofstream(file, std::ios::binary) << all;
  expect_lost();
}

TEST_F(ReplayGuardTest, AnotherKeysRecordIsNotTaken) {
  fill(3);
  Bytes other(32, 2);
  std::filesystem::copy_file(file, dir + "/replay-" + to_hex(other));
  auto g = guard();
  EXPECT_EQ(g->open_key(other, true).error().code, Code::kCorrupt);
}

TEST_F(ReplayGuardTest, AKeyThatWasInUseIsNotBegunAnew) {
  auto g = guard();
  EXPECT_EQ(g->open_key(key, false).error().code, Code::kCorrupt);
}

TEST_F(ReplayGuardTest, AFullRecordRefusesTheKey) {
  auto g = guard(5);
  ASSERT_TRUE(g->open_key(key, true).has_value());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(g->record(key, enc(i)).has_value());
  EXPECT_EQ(g->record(key, enc(5)).error().code, Code::kKeyUnknownOrExpired);
  EXPECT_TRUE(g->lost(key));
}

TEST_F(ReplayGuardTest, TwoDaemonsCannotShareTheFolder) {
  auto g = guard();
  EXPECT_EQ(guard().error().code, Code::kAlreadyExists);
}

}  // namespace
}  // namespace tie::keys
