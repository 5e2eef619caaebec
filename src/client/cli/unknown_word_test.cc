#include "client/cli/unknown_word.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace tie::cli {
namespace {

struct Declared {
  CLI::App app{"", "tie"};
  std::string text;
  Declared() {
    app.require_subcommand(1);
    app.add_subcommand("ask")->add_option("QUESTION", text);
    CLI::App* node = app.add_subcommand("node");
    node->add_option("--socket", text);
    node->add_flag("--loud");
    node->add_subcommand("status");
    node->add_subcommand("resume");
    CLI::App* prompt = node->add_subcommand("prompt");
    prompt->add_subcommand("list");
    prompt->add_subcommand("remove")->add_option("id", text);
    app.add_subcommand("up")->prefix_command();
  }
};

TEST(UnknownWord, IsNamedAtEachLevelWithWhatWasMeant) {
  Declared d;
  EXPECT_EQ(explain_unknown_word(d.app, {"bogus"}), "tie: there is no command 'bogus'. All of them: tie --help");
  EXPECT_EQ(explain_unknown_word(d.app, {"nod"}),
            "tie: there is no command 'nod'. Did you mean: tie node? All of them: tie --help");
  EXPECT_EQ(explain_unknown_word(d.app, {"node", "stauts"}),
            "tie node: there is no command 'stauts'. Did you mean: tie node status? All of them: tie node --help");
  EXPECT_EQ(explain_unknown_word(d.app, {"node", "prompt", "lst"}),
            "tie node prompt: there is no command 'lst'. Did you mean: tie node prompt list? All of them: tie node "
            "prompt --help");
}

TEST(UnknownWord, ValuesOfFlagsAndArgumentsAreNoCommands) {
  Declared d;
  EXPECT_EQ(explain_unknown_word(d.app, {"ask", "bogus"}), std::nullopt);
  EXPECT_EQ(explain_unknown_word(d.app, {"node", "--socket", "bogus", "status"}), std::nullopt);
  EXPECT_EQ(explain_unknown_word(d.app, {"node", "--socket=bogus", "status"}), std::nullopt);
  EXPECT_EQ(explain_unknown_word(d.app, {"node", "status", "--socket", "bogus"}), std::nullopt)
      << "of the outer command";
  EXPECT_EQ(explain_unknown_word(d.app, {"node", "prompt", "remove", "bogus"}), std::nullopt);
  EXPECT_EQ(explain_unknown_word(d.app, {"up", "bogus"}), std::nullopt) << "it reads its own words";
  EXPECT_EQ(explain_unknown_word(d.app, {"node"}), std::nullopt);
  EXPECT_NE(explain_unknown_word(d.app, {"node", "--loud", "bogus"}), std::nullopt) << "a flag has no value";
}

TEST(UnknownWord, SuggestsAFewAndNeverNonsense) {
  EXPECT_EQ(nearest_words("model", {"models", "mode", "modem", "mod", "x"}).size(), 3u);
  EXPECT_EQ(nearest_words("recylce", {"recycle", "resume"}), std::vector<std::string>{"recycle"});
  EXPECT_TRUE(nearest_words("zz", {"up", "ask"}).empty());
  EXPECT_TRUE(nearest_words(std::string(100'000, 'a'), {"up"}).empty());
}

}  // namespace
}  // namespace tie::cli
