#include "client/turn_keys/answer_messages.h"

#include <gtest/gtest.h>

namespace tie::client {
namespace {

v1::InferenceEvent text(const std::string& words, int sample = 0) {
  v1::InferenceEvent event;
  event.set_sample_index(sample);
  event.set_text(words);
  return event;
}

TEST(AnswerMessages, PutsTheTextOfEachSampleTogether) {
  AnswerMessages answer(2);
  for (auto& event : {text("a", 0), text("x", 1), text("b", 0), text("y", 1)}) answer.add(event);
  ASSERT_EQ(answer.messages().size(), 2u);
  EXPECT_EQ(answer.messages()[0].parts(0).text(), "ab");
  EXPECT_EQ(answer.messages()[1].parts(0).text(), "xy");
  EXPECT_EQ(answer.messages()[1].role(), "assistant");
}

TEST(AnswerMessages, PutsToolCallsTogether) {
  AnswerMessages answer(1);
  for (const char* piece : {"{\"a\"", ":1}"}) {
    v1::InferenceEvent event;
    auto* delta = event.add_tool_calls();
    delta->set_index(1);
    delta->set_arguments_fragment(piece);
    if (piece[1] == '"') delta->set_name("f");
    answer.add(event);
  }
  ASSERT_EQ(answer.messages()[0].tool_calls_size(), 2);
  EXPECT_EQ(answer.messages()[0].tool_calls(1).name(), "f");
  EXPECT_EQ(answer.messages()[0].tool_calls(1).arguments_json(), "{\"a\":1}");
}

TEST(AnswerMessages, GivesUpOnWhatANodeShouldNotSend) {
  for (int sample : {-1, 1}) {
    AnswerMessages answer(1);
    answer.add(text("x", sample));
    EXPECT_TRUE(answer.messages().empty());
  }
  AnswerMessages answer(1);
  v1::InferenceEvent event;
  event.add_tool_calls()->set_index(1'000'000);
  answer.add(event);
  EXPECT_TRUE(answer.messages().empty());
}

}  // namespace
}  // namespace tie::client
