#include "client/turn_keys/turn_key_table.h"

#include <gtest/gtest.h>

#include "inference.pb.h"

namespace tie::client {
namespace {

int64_t g_now_ms = 1'000'000;
int64_t fake_now_ms() {
  return g_now_ms;
}

const Bytes kApp = to_bytes("key of an application");

v1::Message message(const std::string& role, const std::string& text) {
  v1::Message out;
  out.set_role(role);
  out.add_parts()->set_text(text);
  return out;
}

// "user question", "assistant answer", … alternating, after a system message.
v1::InferenceRequest request(const std::vector<std::string>& texts, const std::string& model = "m") {
  v1::InferenceRequest out;
  out.set_model(model);
  *out.mutable_conversation()->add_messages() = message("system", "Be brief.");
  for (size_t i = 0; i < texts.size(); ++i)
    *out.mutable_conversation()->add_messages() = message(i % 2 == 0 ? "user" : "assistant", texts[i]);
  return out;
}

struct Keys {
  std::string read, write;
};

struct TurnKeys : ::testing::Test {
  TurnKeyTable table{{.max_histories = 100, .ttl_ms = 10'000, .now_ms = fake_now_ms}};

  Keys ask(const std::vector<std::string>& texts, const std::string& answer, ByteView who = kApp) {
    v1::InferenceRequest asked = request(texts);
    Turn turn = table.begin(who, asked);
    turn.finish(std::vector{message("assistant", answer)});
    return {asked.turn_key_read(), asked.turn_key_write()};
  }
};

TEST_F(TurnKeys, ANewConversationWritesUnderAKeyOfItsOwnAndReadsNothing) {
  Keys first = ask({"hello"}, "hi"), other = ask({"bonjour"}, "salut");
  EXPECT_EQ(first.read, "");
  EXPECT_EQ(first.write.size(), 32u);
  EXPECT_NE(first.write, other.write);
}

TEST_F(TurnKeys, TheNextTurnIsFoundByTheHistoryThatTheApplicationResends) {
  Keys first = ask({"hello"}, "hi");
  Keys second = ask({"hello", "hi", "how are you"}, "fine");
  Keys third = ask({"hello", "hi", "how are you", "fine", "good"}, "yes");
  EXPECT_EQ(second.read, first.write);
  EXPECT_EQ(second.write, first.write);
  EXPECT_EQ(third.read, first.write);
  EXPECT_EQ(third.write, first.write);
}

// A node seals a turn after its answer is out.
TEST_F(TurnKeys, ATurnThatComesAtOnceSaysWhatMayStillBeOnItsWay) {
  auto asked = [&](const std::vector<std::string>& texts, uint32_t tokens) {
    v1::InferenceRequest out = request(texts);
    table.begin(kApp, out).finish(std::vector{message("assistant", "hi")}, tokens);
    return out;
  };
  EXPECT_EQ(asked({"hello"}, 100).turn_key_read_tokens(), 0u);
  EXPECT_EQ(asked({"hello", "hi", "more"}, 150).turn_key_read_tokens(), 100u);
  EXPECT_EQ(asked({"hello", "hi", "more", "hi", "and"}, 170).turn_key_read_tokens(), 150u);
  EXPECT_EQ(asked({"hello", "hi", "less"}, 130).turn_key_read_tokens(), 170u) << "a branch reads the same entry";
  g_now_ms += kTurnSettlesMs;
  EXPECT_EQ(asked({"hello", "hi", "less", "hi", "x"}, 0).turn_key_read_tokens(), 0u) << "long settled";
  EXPECT_EQ(asked({"hello", "hi", "less", "hi", "x", "hi", "y"}, 0).turn_key_read_tokens(), 0u) << "unknown";
}

TEST_F(TurnKeys, ABranchReadsTheSharedHistoryAndWritesElsewhere) {
  Keys first = ask({"hello"}, "hi");
  Keys one = ask({"hello", "hi", "red"}, "apple");
  Keys two = ask({"hello", "hi", "green"}, "pear");
  EXPECT_EQ(one.write, first.write);
  EXPECT_EQ(two.read, first.write);
  EXPECT_NE(two.write, first.write);
  // Each branch goes on under its own key.
  EXPECT_EQ(ask({"hello", "hi", "red", "apple", "more"}, "x").read, one.write);
  Keys goes_on = ask({"hello", "hi", "green", "pear", "more"}, "x");
  EXPECT_EQ(goes_on.read, two.write);
  EXPECT_EQ(goes_on.write, two.write);
}

TEST_F(TurnKeys, AnotherAnswerToTheSameQuestionIsABranch) {
  Keys first = ask({"hello"}, "hi"), again = ask({"hello"}, "good day");
  EXPECT_EQ(again.read, first.write);
  EXPECT_NE(again.write, first.write);
  EXPECT_EQ(ask({"hello", "hi", "x"}, "y").read, first.write);
  EXPECT_EQ(ask({"hello", "good day", "x"}, "y").read, again.write);
}

TEST_F(TurnKeys, AnEditedHistoryReadsWhatItSharesAndWritesElsewhere) {
  Keys first = ask({"hello"}, "hi");
  ask({"hello", "hi", "tell me of cats"}, "they purr");
  Keys edited = ask({"hello", "hi", "tell me of dogs"}, "they bark");
  EXPECT_EQ(edited.read, first.write);
  EXPECT_NE(edited.write, first.write);
  // An answer that the application changed: what came before it is still known.
  Keys changed = ask({"hello", "HI!", "and"}, "so");
  EXPECT_EQ(changed.read, first.write);
  EXPECT_NE(changed.write, first.write);
  // A different first message shares nothing.
  EXPECT_EQ(ask({"goodbye"}, "hi").read, "");
}

TEST_F(TurnKeys, AnotherApplicationAnotherModelAndAnotherPromptGetNothing) {
  Keys first = ask({"hello"}, "hi");
  Keys other = ask({"hello", "hi", "x"}, "y", to_bytes("another key"));
  EXPECT_EQ(other.read, "");
  EXPECT_NE(other.write, first.write);
  v1::InferenceRequest model = request({"hello", "hi", "x"}, "m2"), prompt = request({"hello", "hi", "x"});
  prompt.set_prompt_id("concierge");
  table.begin(kApp, model);
  table.begin(kApp, prompt);
  EXPECT_EQ(model.turn_key_read(), "");
  EXPECT_EQ(prompt.turn_key_read(), "");
}

TEST_F(TurnKeys, TwoRequestsAtOnceNeverWriteUnderOneKey) {
  Keys first = ask({"hello"}, "hi");
  v1::InferenceRequest a = request({"hello", "hi", "x"}), b = a, c = request({"new"}), d = c;
  Turn turn_a = table.begin(kApp, a), turn_b = table.begin(kApp, b), turn_c = table.begin(kApp, c),
       turn_d = table.begin(kApp, d);
  EXPECT_EQ(a.turn_key_write(), first.write);
  EXPECT_EQ(b.turn_key_read(), first.write);
  EXPECT_NE(b.turn_key_write(), first.write);
  EXPECT_NE(c.turn_key_write(), d.turn_key_write());
}

TEST_F(TurnKeys, AFailedTurnMayBeAskedAgainUnderTheSameKeys) {
  Keys first = ask({"hello"}, "hi");
  for (int i = 0; i < 3; ++i) {
    v1::InferenceRequest asked = request({"hello", "hi", "x"});
    Turn turn = table.begin(kApp, asked);
    EXPECT_EQ(asked.turn_key_read(), first.write);
    EXPECT_EQ(asked.turn_key_write(), first.write);
  }
  EXPECT_EQ(ask({"hello", "hi", "x"}, "y").write, first.write);
}

TEST_F(TurnKeys, EverySampleOfAnAnswerMayBeContinued) {
  v1::InferenceRequest asked = request({"hello"});
  Turn turn = table.begin(kApp, asked);
  turn.finish(std::vector{message("assistant", "one"), message("assistant", "two")});
  Keys one = ask({"hello", "one", "x"}, "y"), two = ask({"hello", "two", "x"}, "y");
  EXPECT_EQ(one.read, asked.turn_key_write());
  EXPECT_EQ(two.read, asked.turn_key_write());
  EXPECT_NE(one.write, two.write);
}

TEST_F(TurnKeys, ToolCallsAndResultsArePartOfTheHistoryAndReasoningIsNot) {
  v1::InferenceRequest asked = request({"weather?"});
  v1::Message call = message("assistant", "");
  call.clear_parts();
  call.set_reasoning("I had better look");
  v1::ToolCall& made = *call.add_tool_calls();
  made.set_id("call_1");
  made.set_name("weather");
  made.set_arguments_json(R"({"city":"Bern"})");
  table.begin(kApp, asked).finish(std::vector{call});
  v1::Message resent = call;
  resent.clear_reasoning();
  resent.set_content_is_null(true);
  v1::InferenceRequest next = request({"weather?"});
  *next.mutable_conversation()->add_messages() = resent;
  v1::Message& result = *next.mutable_conversation()->add_messages();
  result = message("tool", "rain");
  result.set_tool_call_id("call_1");
  v1::InferenceRequest changed = next;
  changed.mutable_conversation()->mutable_messages(2)->mutable_tool_calls(0)->set_arguments_json("{}");
  table.begin(kApp, next);
  EXPECT_EQ(next.turn_key_write(), asked.turn_key_write());
  table.begin(kApp, changed);
  EXPECT_NE(changed.turn_key_write(), asked.turn_key_write());
}

TEST_F(TurnKeys, NoTwoMessagesAreTakenForOneAnother) {
  ask({"hello"}, "hi");
  v1::InferenceRequest split = request({});
  v1::Message& two = *split.mutable_conversation()->add_messages();
  two = message("user", "hel");
  two.add_parts()->set_text("lo");
  table.begin(kApp, split);
  EXPECT_EQ(split.turn_key_read(), "");
  v1::InferenceRequest image = request({});
  image.mutable_conversation()->add_messages()->set_role("user");
  image.mutable_conversation()->mutable_messages(1)->add_parts()->set_image("hello");
  table.begin(kApp, image);
  EXPECT_EQ(image.turn_key_read(), "");
}

TEST_F(TurnKeys, TextCompletionsGetNone) {
  v1::InferenceRequest text;
  text.set_raw_text("once upon");
  table.begin(kApp, text).finish({});
  EXPECT_EQ(text.turn_key_read() + text.turn_key_write(), "");
  EXPECT_EQ(table.histories(), 0u);
}

TEST_F(TurnKeys, ForgetsWhatWasNotUsedForItsTime) {
  Keys first = ask({"hello"}, "hi");
  g_now_ms += 9'000;
  EXPECT_EQ(ask({"hello", "hi", "x"}, "y").read, first.write);
  g_now_ms += 9'000;
  EXPECT_EQ(ask({"hello", "hi", "x", "y", "z"}, "w").read, first.write);
  g_now_ms += 10'000;
  EXPECT_EQ(ask({"hello", "hi", "x"}, "y").read, "");
}

TEST_F(TurnKeys, DropsTheLeastRecentlyUsedWhenFull) {
  Keys kept = ask({"kept"}, "yes"), lost = ask({"lost"}, "no");
  for (int i = 0; i < 60; ++i) {
    ask({"other " + std::to_string(i)}, "a");
    EXPECT_EQ(ask({"kept", "yes", "still?" + std::to_string(i)}, "a").read, kept.write);
  }
  EXPECT_LE(table.histories(), 100u);
  EXPECT_EQ(ask({"lost", "no", "x"}, "y").read, "");
}

TEST_F(TurnKeys, AFullTableForgetsItsKeysOnRequest) {
  ask({"hello"}, "hi");
  table.forget();
  EXPECT_EQ(table.histories(), 0u);
  EXPECT_EQ(ask({"hello", "hi", "x"}, "y").read, "");
}

TEST_F(TurnKeys, ATableThatWasWrittenAndReadKnowsTheSameConversations) {
  Keys first = ask({"hello"}, "hi");
  Keys branch = ask({"hello"}, "good day");
  SecretBytes bytes = table.serialize();
  TurnKeyTable again({.max_histories = 100, .ttl_ms = 10'000, .now_ms = fake_now_ms});
  ASSERT_TRUE(again.parse(bytes.view()));
  EXPECT_EQ(again.histories(), table.histories());
  v1::InferenceRequest next = request({"hello", "hi", "x"}), other = request({"hello", "good day", "x"});
  again.begin(kApp, next);
  again.begin(kApp, other);
  EXPECT_EQ(next.turn_key_write(), first.write);
  EXPECT_EQ(other.turn_key_write(), branch.write);
  for (size_t cut : {size_t(0), size_t(31), bytes.size() / 2, bytes.size() - 1})
    EXPECT_EQ(again.parse(bytes.view().first(cut)).error().code, Code::kCorrupt) << cut;
}

}  // namespace
}  // namespace tie::client
