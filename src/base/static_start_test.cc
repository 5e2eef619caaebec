// Linked as the programs are that live for one request: cmake/static_start.py has shortened this program's start, too.
// What glibc would have asked the processor there only chooses how memory is copied.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

constexpr long kAnswerBytes = 2 << 20;  // CACHE_BYTES of static_start.py

bool intel_processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("vendor_id")) return line.find("GenuineIntel") != std::string::npos;
  return false;
}

TEST(StaticStart, DoesNotAskForTheSizesOfTheCaches) {
#if defined(TIE_STATIC_TEST) && __GLIBC__ == 2 && __GLIBC_MINOR__ == 36
  if (!intel_processor()) GTEST_SKIP() << "only Intel's processors are asked in the function that was replaced";
  EXPECT_EQ(::sysconf(_SC_LEVEL1_DCACHE_SIZE), kAnswerBytes);
  EXPECT_EQ(::sysconf(_SC_LEVEL2_CACHE_SIZE), kAnswerBytes);
#else
  (void)intel_processor;
  GTEST_SKIP() << "this build does not link it statically, or against another libc";
#endif
}

TEST(StaticStart, MemoryIsCopiedWholeAroundEverySizeThatTheAnswerChooses) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{2048}, size_t{4096}, size_t{1 << 20}, size_t{3 << 19},
                      size_t{2 << 20}, size_t{24 << 20}}) {
    for (size_t shift : {size_t{0}, size_t{1}, size_t{4095}}) {
      std::vector<unsigned char> from(size + shift + 64), to(size + shift + 64, 0xee);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
      std::memcpy(to.data() + shift, from.data(), size);
      ASSERT_EQ(std::memcmp(to.data() + shift, from.data(), size), 0) << size << " at " << shift;
      EXPECT_EQ(to[shift + size], 0xee) << size << " at " << shift;
      std::memmove(from.data() + shift, from.data(), size);
      ASSERT_EQ(std::memcmp(to.data() + shift, from.data() + shift, size), 0) << size << " moved by " << shift;
      std::memset(to.data() + shift, 0, size);
      EXPECT_EQ(std::count(to.begin() + long(shift), to.begin() + long(shift + size), 0), long(size));
      EXPECT_EQ(to[shift + size], 0xee) << size << " at " << shift;
    }
  }
}

}  // namespace
