#include "os/log.h"

#include <gtest/gtest.h>

#include <string>

namespace tie::os {
namespace {

TEST(Log, WritesOneLineThatMatchesItsOwnFormat) {
  ::testing::internal::CaptureStderr();
  TIE_LOG("os_test", "port {} request {} ended with {} after {} s", 8443, LogId("0123456789abcdef0123"),
          Code::kOverloaded, 1.5);
  std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(line, "os_test: port 8443 request 0123456789abcdef ended with OVERLOADED after 1.500 s\n");
  line.pop_back();
  EXPECT_TRUE(line_matches_format(line, "os_test: port {} request {} ended with {} after {} s"));
}

TEST(Log, ArgumentsCannotCarryText) {
  EXPECT_EQ(LogWord("what is my name").text(), "?");
  EXPECT_EQ(LogWord(std::string(41, 'a')).text(), "?");
  EXPECT_EQ(LogId("hello").text(), "?");
  EXPECT_EQ(LogId("ABC").text(), "?");
}

TEST(Log, LinesThatNoFormatCouldHaveWrittenAreRecognised) {
  EXPECT_FALSE(line_matches_format("a: port what is this", "a: port {}"));
  EXPECT_FALSE(line_matches_format("a: port 1 and a secret", "a: port {}"));
  EXPECT_FALSE(line_matches_format("a: port ", "a: port {}"));
  EXPECT_FALSE(line_matches_format("b: port 1", "a: port {}"));
  EXPECT_FALSE(line_matches_format("", "a: port {}"));
  EXPECT_TRUE(line_matches_format("a: took 3 ms.", "a: took {} ms."));
  EXPECT_TRUE(line_matches_format("a: took 3.", "a: took {}."));
  EXPECT_TRUE(line_matches_format("a: 1/2", "a: {}/{}"));
}

TEST(Log, MissingArgumentsLeaveTheHoleVisible) {
  ::testing::internal::CaptureStderr();
  write_log_line("c", "x {}", {});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "c: x {}\n");
}

}  // namespace
}  // namespace tie::os
