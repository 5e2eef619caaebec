#include "client/proxy/json_body.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/proxy/json_text.h"
#include "client/proxy/limits.h"

namespace tie::client {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

// The whole suite beside the repository, else the slice in it.
std::filesystem::path suite() {
  const char* shared = std::getenv("TIE_SHARED_DATA");
  std::filesystem::path big =
      std::filesystem::path(shared ? shared : TIE_SOURCE_DIR "/../shared/data") / "json_parsing/test_parsing";
  if (std::filesystem::exists(big)) return big;
  return TIE_SOURCE_DIR "/tests/data/json_parsing/test_parsing";
}

TEST(JsonBody, JudgesTheTortureSuiteByName) {
  if (!std::filesystem::exists(suite())) GTEST_SKIP() << "no JSON torture files";
  int accepted = 0, refused = 0, either = 0;
  for (const auto& entry : std::filesystem::directory_iterator(suite())) {
    std::string name = entry.path().filename();
    bool parsed = parse_json_body(read(entry.path())).has_value();
    if (name.starts_with("y_")) {
      EXPECT_TRUE(parsed) << name;
      ++accepted;
    } else if (name.starts_with("n_")) {
      EXPECT_FALSE(parsed) << name;
      ++refused;
    } else {
      ++either;
    }
  }
  EXPECT_GT(accepted, 5);
  EXPECT_GT(refused, 5);
  RecordProperty("either", either);
}

TEST(JsonBody, RefusesDeepNestingBeforeParsingIt) {
  std::string deep(100'000, '[');
  auto parsed = parse_json_body(deep + std::string(100'000, ']'));
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("nested"), std::string::npos);
  std::string fine = std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']');
  EXPECT_TRUE(parse_json_body(fine));
  EXPECT_FALSE(parse_json_body("[" + fine + "]"));
}

TEST(JsonBody, BracketsInsideStringsDoNotCount) {
  EXPECT_TRUE(parse_json_body("\"" + std::string(1000, '[') + "\\\"[[\""));
}

TEST(JsonBody, RefusesBytesThatAreNotUtf8) {
  EXPECT_FALSE(parse_json_body("\"\xff\""));
  EXPECT_FALSE(parse_json_body("\"\xed\xa0\x80\""));
  EXPECT_FALSE(parse_json_body("\"\xc0\xaf\""));
}

TEST(JsonBody, TheLastOfEqualKeysCounts) {
  auto parsed = parse_json_body(R"({"a":1,"a":2})");
  ASSERT_TRUE(parsed);
  EXPECT_EQ((*parsed)["a"], 2);
}

TEST(JsonText, WritesOnlyValidJsonStrings) {
  for (int high = 0; high < 256; ++high) {
    for (int low = 0; low < 256; ++low) {
      std::string text{char(high), char(low)}, out;
      append_json_string(out, text);
      auto back = parse_json_body(out);
      ASSERT_TRUE(back) << high << " " << low;
      if (is_utf8(text)) {
        ASSERT_EQ(back->get<std::string>(), text);
      }
    }
  }
}

TEST(JsonText, InfinityStaysValidJson) {
  std::string out;
  append_json_number(out, -1.0 / 0.0);
  EXPECT_EQ(out, "-9999.0");
  out.clear();
  append_json_number(out, -0.25);
  EXPECT_EQ(out, "-0.25");
  out.clear();
  append_json_number(out, 3);
  EXPECT_EQ(out, "3.0");
}

}  // namespace
}  // namespace tie::client
