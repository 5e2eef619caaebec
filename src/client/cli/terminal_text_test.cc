#include "client/cli/terminal_text.h"

#include <gtest/gtest.h>

namespace tie::cli {
namespace {

TEST(TerminalText, LetsTextThrough) {
  EXPECT_EQ(for_terminal("a\tb\nGr\u00fc\u00dfe \u4f60\u597d \U0001f469\u200d\U0001f680"),
            "a\tb\nGr\u00fc\u00dfe \u4f60\u597d \U0001f469\u200d\U0001f680");
}

TEST(TerminalText, TakesControlsAway) {
  EXPECT_EQ(for_terminal("\x1b[2Jx"), "\xef\xbf\xbd[2Jx");
  EXPECT_EQ(for_terminal("\x1b]0;title\x07"), "\xef\xbf\xbd]0;title\xef\xbf\xbd");
  EXPECT_EQ(for_terminal("a\rb\x7f"),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd");
  EXPECT_EQ(for_terminal("\xc2\x9b"
                         "31m"),
            "\xef\xbf\xbd"
            "31m");  // the C1 form of an escape sequence
  EXPECT_EQ(for_terminal("\xc2\xa0"), "\xc2\xa0");
}

TEST(TerminalText, CountsOneAndMany) {
  EXPECT_EQ(counted(1, "page"), "1 page");
  EXPECT_EQ(counted(0, "page"), "0 pages");
  EXPECT_EQ(counted(2, "process"), "2 processes");
}

}  // namespace
}  // namespace tie::cli
