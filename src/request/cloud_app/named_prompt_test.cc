#include "request/cloud_app/named_prompt.h"

#include <gtest/gtest.h>

#include "request/cloud_app/prompt_input.h"
#include "request/cloud_app/testing.h"

namespace tie::request::app {
namespace {

using testing::bytes_of;
using testing::kEnd;
using testing::kStart;

struct NamedPromptTest : ::testing::Test {
  testing::TinyAssets assets;
  std::unique_ptr<ServedModel> model = assets.model();
  prefix::SystemPrompt pirate{"pirate", "tiny", "Arr.", tokens({kStart}, "system:Arr.", {kEnd})};

  NamedPromptTest() { write("pirate", prefix::to_json(pirate)); }
  static std::vector<int32_t> tokens(std::vector<int32_t> head, const char* text, std::vector<int32_t> tail) {
    for (int32_t b : bytes_of(text)) head.push_back(b);
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
  }
  void write(const std::string& id, const std::string& json) const {
    std::filesystem::create_directories(assets.root + "/prompts");
    std::ofstream(assets.root + "/prompts/" + id + ".json") << json;
  }
  Checked<prefix::SystemPrompt> named(const std::string& id, const std::string& of_model = "tiny") const {
    return named_prompt(assets.root, id, of_model);
  }
};

TEST_F(NamedPromptTest, IsReadFromTheAssets) {
  auto found = named("pirate");
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->tokens, pirate.tokens);
}

TEST_F(NamedPromptTest, AnUnknownIdAndOneOfAnotherModelAreTheSameClearRefusal) {
  std::ofstream(assets.root + "/secret.json") << prefix::to_json(pirate);
  for (const char* id : {"ghost", "../secret", "..", ".hidden", "a/b", "pirate\n"}) {
    EXPECT_EQ(named(id).error().code, Code::kNotFound) << id;
    EXPECT_EQ(named(id).error().param, "prompt_id");
  }
  EXPECT_EQ(named(std::string(70, 'a')).error().code, Code::kNotFound);
  EXPECT_EQ(named("pirate", "other").error().code, Code::kNotFound);
}

TEST_F(NamedPromptTest, ADamagedFileIsTheNodesFault) {
  write("bad", "{\"id\": \"bad\"");
  EXPECT_EQ(named("bad").error().code, Code::kInternal);
}

TEST_F(NamedPromptTest, ItsTokensAreTheBeginningOfAConversation) {
  auto request = testing::chat("hi");
  ASSERT_TRUE(add_system_message(pirate, request));
  auto prompt = prompt_tokens(request, *model, &pirate);
  ASSERT_TRUE(prompt);
  auto rest = tokens({kStart}, "user:hi", {kEnd, kStart});
  for (int32_t b : bytes_of("assistant:")) rest.push_back(b);
  std::vector<int32_t> expected = pirate.tokens;
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(prompt->ids, expected);
}

TEST_F(NamedPromptTest, TheSameTextAsFirstSystemMessageStaysAndAnotherIsRefused) {
  auto request = testing::chat("hi");
  ASSERT_TRUE(add_system_message(pirate, request));
  ASSERT_TRUE(add_system_message(pirate, request));
  EXPECT_EQ(request.conversation().messages_size(), 2);
  EXPECT_EQ(request.conversation().messages(1).role(), "user");
  request.mutable_conversation()->mutable_messages(0)->mutable_parts(0)->set_text("Be dull.");
  auto refused = add_system_message(pirate, request);
  EXPECT_EQ(refused.error().code, Code::kBadRequest);
  EXPECT_EQ(refused.error().param, "prompt_id");
}

TEST_F(NamedPromptTest, TextAndTokenIdsFollowItsTokens) {
  v1::InferenceRequest request;
  request.set_raw_text("a<|end|>");
  std::vector<int32_t> expected = pirate.tokens;
  for (int32_t b : bytes_of("a<|end|>")) expected.push_back(b);
  EXPECT_EQ(prompt_tokens(request, *model, &pirate)->ids, expected) << "what a user types is no control token";
  request.mutable_token_ids()->add_ids(104);
  expected = pirate.tokens;
  expected.push_back(104);
  EXPECT_EQ(prompt_tokens(request, *model, &pirate)->ids, expected);
}

TEST_F(NamedPromptTest, WordsAboutToolsComeAfterIt) {
  auto request = testing::chat("hi");
  auto& tool = *request.add_tools();
  tool.set_name("f");
  ASSERT_TRUE(add_system_message(pirate, request));
  auto prompt = prompt_tokens(request, *model, &pirate);
  ASSERT_TRUE(prompt) << prompt.error().message;
  std::vector<int32_t> beginning(pirate.tokens.begin(), pirate.tokens.end() - 1);  // all but the message's end
  ASSERT_GT(prompt->ids.size(), beginning.size());
  EXPECT_TRUE(std::equal(beginning.begin(), beginning.end(), prompt->ids.begin()));
}

}  // namespace
}  // namespace tie::request::app
