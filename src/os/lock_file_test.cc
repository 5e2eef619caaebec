#include "os/lock_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace tie::os {
namespace {

class LockFile : public ::testing::Test {
 protected:
  LockFile() {
    std::string name = "/tmp/tie-lock-test-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~LockFile() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(LockFile, OneHolderAtATimeAndItFallsWithTheDescriptor) {
  const std::string path = folder_ + "/lock";
  {
    auto first = lock_file(path);
    ASSERT_TRUE(first) << first.error().message;
    struct stat about{};
    ASSERT_EQ(::stat(path.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, 0600u);
    auto second = lock_file(path);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  }
  EXPECT_TRUE(lock_file(path));
}

TEST_F(LockFile, FollowsNoLinkAndMakesNoFolder) {
  ASSERT_EQ(::symlink((folder_ + "/elsewhere").c_str(), (folder_ + "/lock").c_str()), 0);
  EXPECT_FALSE(lock_file(folder_ + "/lock"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/elsewhere"));
  auto missing = lock_file(folder_ + "/none/lock");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().code, Code::kAlreadyExists);
}

}  // namespace
}  // namespace tie::os
