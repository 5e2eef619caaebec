#include "inference/hosts/server/registered_prompts.h"

#include <gtest/gtest.h>

namespace tie::runtime_host {
namespace {

const RegisteredPrompts kTwo({{"pirate", {1, 2, 3}, {}}, {"short", {9}, {}}});

TEST(RegisteredPrompts, APromptBeginsWithWhatItsIdNames) {
  EXPECT_TRUE(kTwo.check("pirate", std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_TRUE(kTwo.check("pirate", std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(kTwo.check("short", std::vector<int32_t>{9, 1}));
  for (const std::vector<int32_t>& other : {std::vector<int32_t>{1, 2, 4, 4}, {1, 2}, {0, 1, 2, 3}, {}})
    EXPECT_EQ(kTwo.check("pirate", other).error().code, Code::kBadRequest);
}

TEST(RegisteredPrompts, AnUnknownIdIsAnErrorAndNoIdIsNone) {
  for (const char* id : {"ghost", "pirat", "pirate2", "\xff"})
    EXPECT_EQ(kTwo.check(id, std::vector<int32_t>{1, 2, 3}).error().code, Code::kNotFound) << id;
  EXPECT_EQ(RegisteredPrompts().check("pirate", std::vector<int32_t>{1, 2, 3}).error().code, Code::kNotFound);
  EXPECT_TRUE(kTwo.check("", std::vector<int32_t>{5}));
  EXPECT_TRUE(RegisteredPrompts().check("", {}));
}

}  // namespace
}  // namespace tie::runtime_host
