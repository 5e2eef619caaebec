#include "os/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "os/unix_socket.h"

namespace tie::os {
namespace {

class Files : public ::testing::Test {
 protected:
  Files() {
    char name[] = "/tmp/tie-fd-test-XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~Files() override { std::filesystem::remove_all(dir_); }
  std::string path(const char* name) const { return dir_ + "/" + name; }
  std::string dir_;
};

TEST_F(Files, AtomicWriteLeavesOneWholeFileWithTheGivenMode) {
  ASSERT_TRUE(write_file_atomic(path("a"), as_bytes("first"), 0640));
  ASSERT_TRUE(write_file_atomic(path("a"), as_bytes("second"), 0640));
  auto read = read_file(path("a"), 100);
  ASSERT_TRUE(read);
  EXPECT_EQ(to_string(*read), "second");
  struct stat st{};
  ::stat(path("a").c_str(), &st);
  EXPECT_EQ(st.st_mode & 0777, 0640u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(Files, ReadFileGivesTheWholeFileWhateverItsSize) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{65535}, size_t{65536}, size_t{200'000}}) {
    Bytes content(size);
    for (size_t i = 0; i < size; ++i) content[i] = static_cast<uint8_t>(i * 7 + 1);
    ASSERT_TRUE(write_file_atomic(path("a"), content));
    auto read = read_file(path("a"), 200'000);
    ASSERT_TRUE(read) << size;
    EXPECT_EQ(*read, content) << size;
  }
}

TEST_F(Files, ReadFileRefusesOneByteOverTheLimit) {
  ASSERT_TRUE(write_file_atomic(path("a"), as_bytes("12345")));
  EXPECT_TRUE(read_file(path("a"), 5));
  auto over = read_file(path("a"), 4);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code, Code::kTooLarge);
  EXPECT_EQ(read_file(path("none"), 4).error().code, Code::kNotFound);
  EXPECT_TRUE(read_file("/proc/self/status", 65536));
}

TEST(Fd, WriteToAPeerThatNeverReadsEndsAtTheDeadline) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  Bytes much(8 << 20);
  auto sent = write_all(pair->first.get(), much, Deadline::in_ms(60));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Code::kDeadline);
}

TEST(Fd, WriteToAPipeThatNobodyReadsEndsAtTheDeadline) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd reader(ends[0]), writer(ends[1]);
  Bytes much(4 << 20);
  EXPECT_EQ(write_all(writer.get(), much, Deadline::in_ms(60)).error().code, Code::kDeadline);
}

TEST(Fd, ReadExactTellsAClosedStreamFromALateOne) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  uint8_t buffer[4];
  EXPECT_EQ(read_exact(pair->first.get(), buffer, Deadline::in_ms(20)).error().code, Code::kDeadline);
  ASSERT_TRUE(write_all(pair->second.get(), as_bytes("abc"), Deadline::in_ms(100)));
  pair->second.close();
  EXPECT_EQ(read_exact(pair->first.get(), buffer, Deadline::in_ms(100)).error().code, Code::kIo);
}

TEST(Fd, WriteToAClosedPeerIsAnErrorAndNoSignal) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  pair->second.close();
  EXPECT_EQ(write_all(pair->first.get(), as_bytes("x"), Deadline::in_ms(100)).error().code, Code::kIo);
}

TEST(Fd, DuplicateIsCloseOnExec) {
  Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto copy = fd.duplicate();
  ASSERT_TRUE(copy);
  EXPECT_TRUE(::fcntl(copy->get(), F_GETFD) & FD_CLOEXEC);
}

}  // namespace
}  // namespace tie::os
