#include "supervision/stateless_proof/leak_search.h"

#include <gtest/gtest.h>

namespace tie::proof {
namespace {

std::vector<std::pair<size_t, size_t>> finds(const LeakSearch& search, std::string_view text) {
  std::vector<std::pair<size_t, size_t>> out;
  search.search(as_bytes(text), [&](size_t form, size_t end) { out.emplace_back(form, end); });
  return out;
}

TEST(LeakSearch, FindsEveryPatternAtEveryPlaceAndNothingElse) {
  auto search =
      LeakSearch::create({{"a", {to_bytes("canary-one"), to_bytes("canary-two")}}, {"b", {to_bytes("another!")}}});
  ASSERT_TRUE(search);
  using Finds = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(finds(*search, "canary-one"), (Finds{{0, 10}}));
  EXPECT_EQ(finds(*search, "xcanary-twoanother!canary-one"), (Finds{{0, 11}, {1, 19}, {0, 29}}));
  EXPECT_EQ(finds(*search, "canary-on canary-TWO another"), Finds{});
  EXPECT_EQ(finds(*search, ""), Finds{});
}

TEST(LeakSearch, RefusesADetectorThatCouldFindNothing) {
  EXPECT_EQ(LeakSearch::create({{"a", {}}}).error().code, Code::kBadRequest);
  EXPECT_EQ(LeakSearch::create({{"a", {to_bytes("short")}}}).error().code, Code::kBadRequest);
}

TEST(LeakForms, TextIsEscapedAsBothKindsOfWriterDo) {
  auto forms = text_forms({"quoted\"word\xc3\xb6\xe2\x82\xac"});
  ASSERT_EQ(forms.size(), 2u);
  EXPECT_EQ(to_string(forms[0].patterns[0]), "quoted\"word\xc3\xb6\xe2\x82\xac");
  ASSERT_EQ(forms[1].patterns.size(), 2u);
  EXPECT_EQ(to_string(forms[1].patterns[0]), "quoted\\\"word\xc3\xb6\xe2\x82\xac");
  EXPECT_EQ(to_string(forms[1].patterns[1]), "quoted\\\"word\\u00f6\\u20ac");
}

TEST(LeakForms, EveryRunOfNineIdsHoldsAPattern) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(1000 + 17 * i);
  auto forms = token_forms(ids);
  auto search = LeakSearch::create(forms);
  ASSERT_TRUE(search);
  for (size_t at = 0; at + 9 <= 36; ++at) {
    Bytes narrow, wide;
    for (size_t i = at; i < at + 9; ++i) {
      for (int byte = 0; byte < 4; ++byte) narrow.push_back(static_cast<uint8_t>(ids[i] >> (8 * byte)));
      for (int byte = 0; byte < 8; ++byte) wide.push_back(static_cast<uint8_t>(int64_t{ids[i]} >> (8 * byte)));
    }
    size_t found[2] = {};
    search->search(narrow, [&](size_t form, size_t) { ++found[form]; });
    EXPECT_GT(found[0], 0u) << at;
    EXPECT_EQ(found[1], 0u);
    search->search(wide, [&](size_t form, size_t) { ++found[form]; });
    EXPECT_GT(found[1], 0u) << at;
  }
}

TEST(LeakForms, RowsThatCouldBeAnythingAreNoEvidence) {
  EXPECT_TRUE(row_form("K", {Bytes(32, 0)}).patterns.empty());
  Bytes row;
  for (uint8_t i = 0; i < 32; ++i) row.push_back(i);
  EXPECT_EQ(row_form("K", {row}).patterns.size(), 1u);
}

}  // namespace
}  // namespace tie::proof
