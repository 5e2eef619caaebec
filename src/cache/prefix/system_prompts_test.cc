#include "cache/prefix/system_prompts.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "os/fd.h"

namespace tie::prefix {
namespace {

TEST(SystemPrompts, GoToJsonAndBack) {
  SystemPrompt prompt{"support-v1", "m", "You are \"helpful\".\n", {1, 2, 300000}};
  auto back = parse_system_prompt(to_json(prompt));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->id, prompt.id);
  EXPECT_EQ(back->text, prompt.text);
  EXPECT_EQ(back->tokens, prompt.tokens);
}

TEST(SystemPrompts, RefusesWhatIsNotAPrompt) {
  for (const char* bad : {"", "[]", "{", "{}", R"({"id":"a","model":"m","text":"t"})",
                          R"({"id":"a","model":"m","text":"t","token_ids":[1.5]})",
                          R"({"id":"a","model":"m","text":"t","token_ids":[-1]})",
                          R"({"id":"a","model":"m","text":"t","token_ids":[4294967296]})",
                          R"({"id":"../a","model":"m","text":"t","token_ids":[1]})",
                          R"({"id":"a","model":"m","text":"t","token_ids":[1],"extra":1})",
                          R"({"id":1,"model":"m","text":"t","token_ids":[1]})"})
    EXPECT_FALSE(parse_system_prompt(bad)) << bad;
  EXPECT_FALSE(parse_system_prompt(std::string(100'000, '[')));
}

TEST(SystemPrompts, AreReadPerModelInOrder) {
  char folder[] = "/tmp/tie-prompts-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  std::string assets = folder;
  EXPECT_TRUE(read_prompts(assets, "m").value().empty());
  std::filesystem::create_directories(assets + "/prompts");
  auto write = [&](const SystemPrompt& p, const std::string& name) {
    ASSERT_TRUE(os::write_file_atomic(assets + "/prompts/" + name, as_bytes(to_json(p))));
  };
  write({"b", "m", "", {2}}, "b.json");
  write({"a", "m", "", {1}}, "a.json");
  write({"c", "other", "", {3}}, "c.json");
  auto prompts = read_prompts(assets, "m");
  ASSERT_TRUE(prompts) << prompts.error().message;
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].id, "a");
  write({"x", "m", "", {3}}, "y.json");
  EXPECT_FALSE(read_prompts(assets, "m")) << "a file that pretends to be another prompt";
  std::filesystem::remove_all(assets);
}

}  // namespace
}  // namespace tie::prefix
