#include "os/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace tie::os {
namespace {

TEST(Memfd, RequireSealsNamesWhatIsMissing) {
  auto fd = create_memfd("t", 4096);
  ASSERT_TRUE(fd);
  ASSERT_TRUE(add_seals(fd->get(), F_SEAL_SHRINK));
  auto checked = require_seals(fd->get(), kSealSize);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::kPermissionDenied);
  EXPECT_EQ(checked.error().message.find("SHRINK"), std::string::npos);
  EXPECT_NE(checked.error().message.find("GROW, SEAL"), std::string::npos);
  ASSERT_TRUE(add_seals(fd->get(), kSealSize));
  EXPECT_TRUE(require_seals(fd->get(), kSealSize));
}

TEST(Memfd, SealedSizeCannotBeTruncated) {
  auto fd = create_memfd("t", 4096);
  ASSERT_TRUE(fd);
  ASSERT_EQ(::ftruncate(fd->get(), 8192), 0) << "the test must be able to fail";
  ASSERT_TRUE(add_seals(fd->get(), kSealSize));
  EXPECT_NE(::ftruncate(fd->get(), 0), 0);
  EXPECT_NE(::ftruncate(fd->get(), 1 << 20), 0);
}

TEST(Memfd, FutureWriteSealKeepsTheOldMappingAndRefusesNewOnes) {
  auto fd = create_memfd("t", 4096);
  ASSERT_TRUE(fd);
  auto old = Mapping::read_write(fd->get());
  ASSERT_TRUE(old);
  ASSERT_TRUE(add_seals(fd->get(), kSealFutureWrite));
  EXPECT_FALSE(Mapping::read_write(fd->get()));
  auto reader = Mapping::read_only(fd->get());
  ASSERT_TRUE(reader);
  std::memset(old->writable().data(), 7, 4096);
  EXPECT_EQ(reader->bytes()[4095], std::byte{7});
}

TEST(Memfd, ADescriptorThatCannotBeSealedFailsTheCheck) {
  Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(require_seals(null.get(), kSealSize).error().code, Code::kPermissionDenied);
}

TEST(Memfd, MappingBeyondTheEndIsRefused) {
  auto fd = create_memfd("t", 4096);
  ASSERT_TRUE(fd);
  EXPECT_EQ(Mapping::read_only(fd->get(), 4097).error().code, Code::kOutOfRange);
  EXPECT_TRUE(Mapping::read_only(fd->get(), 4096));
}

TEST(Memfd, HugePagesKeepWhatWasWrittenAndCanBeSealed) {
  const size_t bytes = (size_t{5} << 20) + 100;
  auto fd = create_memfd("t", bytes);
  ASSERT_TRUE(fd);
  {
    auto writer = Mapping::read_write(fd->get());
    ASSERT_TRUE(writer);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(writer->bytes().data()) % (2 << 20), 0u);
    for (size_t i = 0; i < bytes; i += 997) writer->writable()[i] = static_cast<std::byte>(i);
    if (!writer->use_huge_pages()) GTEST_SKIP() << "this kernel does not gather shared memory into huge pages";
  }
  ASSERT_TRUE(add_seals(fd->get(), kSealAll));
  auto reader = Mapping::read_only(fd->get());
  ASSERT_TRUE(reader);
  for (size_t i = 0; i < bytes; i += 997) ASSERT_EQ(reader->bytes()[i], static_cast<std::byte>(i)) << i;
}

TEST(Memfd, AllocatedPagesAreZeroAndKeepWhatIsThere) {
  auto fd = create_memfd("test", 5 * 4096 + 17);
  ASSERT_TRUE(fd);
  auto writer = Mapping::read_write(fd->get());
  ASSERT_TRUE(writer);
  writer->writable()[4096] = std::byte{7};
  writer->allocate_pages();
  auto reader = Mapping::read_only(fd->get());
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->bytes()[4096], std::byte{7});
  EXPECT_EQ(std::count(reader->bytes().begin(), reader->bytes().end(), std::byte{0}), 5 * 4096 + 16);
  Mapping().allocate_pages();
}

TEST(Memfd, IsNotExecutable) {
  auto fd = create_memfd("t", 4096);
  ASSERT_TRUE(fd);
  if ((*get_seals(fd->get()) & 0x20) == 0) GTEST_SKIP() << "this kernel has no MFD_NOEXEC_SEAL";
  EXPECT_NE(::fchmod(fd->get(), 0777), 0);
}

}  // namespace
}  // namespace tie::os
