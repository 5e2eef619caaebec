#include "inference/engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace tie::engine {
namespace {

TEST(StopMatcher, HoldsBackOnlyWhileAPrefixMatches) {
  StopMatcher m({"STOP"});
  EXPECT_FALSE(m.feed("a", true));
  EXPECT_EQ(m.safe_bytes(), 1u);
  EXPECT_FALSE(m.feed("ST", true));
  EXPECT_EQ(m.safe_bytes(), 1u);
  EXPECT_FALSE(m.feed("x", true));
  EXPECT_EQ(m.safe_bytes(), 4u);
}

TEST(StopMatcher, FindsAMatchOverSeveralTokensAndInsideOne) {
  StopMatcher over({"STOP"});
  EXPECT_FALSE(over.feed("aST", true));
  EXPECT_TRUE(over.feed("OPb", true));
  EXPECT_EQ(over.match().start, 1u);
  EXPECT_EQ(over.match().end, 5u);
  StopMatcher inside({"\n\n"});
  EXPECT_TRUE(inside.feed("x\n\ny", true));
  EXPECT_EQ(inside.match().start, 1u);
}

TEST(StopMatcher, OverlappingPrefixesAreNotMissed) {
  StopMatcher m({"aab"});
  EXPECT_TRUE(m.feed("aaab", true));
  EXPECT_EQ(m.match().start, 1u);
}

TEST(StopMatcher, AMatchBelowMinTokensIsPassedOver) {
  StopMatcher m({"x"});
  EXPECT_FALSE(m.feed("x", false));
  EXPECT_EQ(m.safe_bytes(), 1u);
  EXPECT_TRUE(m.feed("x", true));
}

// Against the definition: the first position at which some stop ends, the longest of those.
TEST(StopMatcher, AgreesWithSearchingTheWholeText) {
  std::mt19937 rng(5);
  auto random_text = [&](size_t n) {
    std::string s(n, 'a');
    for (auto& c : s) c = static_cast<char>('a' + rng() % 2);
    return s;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + rng() % 3; ++i) stops.push_back(random_text(1 + rng() % 6));
    std::string text = random_text(40);
    size_t best_end = std::string::npos, best_length = 0;
    for (size_t end = 1; end <= text.size() && best_end == std::string::npos; ++end)
      for (auto& s : stops)
        if (end >= s.size() && text.compare(end - s.size(), s.size(), s) == 0) {
          best_end = end;
          best_length = std::max(best_length, s.size());
        }
    StopMatcher m(stops);
    bool found = false;
    for (size_t at = 0; at < text.size() && !found;) {
      size_t n = 1 + rng() % 4;
      uint64_t safe_before = m.safe_bytes();
      found = m.feed(std::string_view(text).substr(at, n), true);
      if (found) {
        EXPECT_LE(safe_before, m.match().start);  // nothing of the stop had been let go
      }
      at += n;
    }
    ASSERT_EQ(found, best_end != std::string::npos);
    if (found) {
      EXPECT_EQ(m.match().end, best_end);
      EXPECT_EQ(m.match().start, best_end - best_length);
    }
  }
}

}  // namespace
}  // namespace tie::engine
