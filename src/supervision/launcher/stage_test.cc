// What request processes are given to read, and when.
#include "supervision/launcher/stage.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "os/fd.h"
#include "supervision/model_owner/served_version.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

class AppAssets : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-stage-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    at_ = folder;
    write("prefix/libexec/tie/program", "code");
    fs::create_directories(at_ + "/served");
    stage_ = Stage::create(at_ + "/run", at_ + "/prefix").value();
  }
  void TearDown() override { fs::remove_all(at_); }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories(fs::path(at_ + "/" + file).parent_path());
    std::ofstream(at_ + "/" + file) << text;
  }
  // A version of the model on disk; an empty template is none.
  void put(const std::string& tokenizer, const std::string& chat_template, const std::string& record = "") {
    write("assets/models/m/tokenizer.img", tokenizer);
    write("assets/models/m/model.toml", record);
    fs::remove(at_ + "/assets/models/m/template.jinja");
    if (!chat_template.empty()) write("assets/models/m/template.jinja", chat_template);
  }
  void serve(const std::string& tokenizer, const std::string& chat_template, uint8_t id = 1) {
    owner::ServedVersion version;
    version.model_id.fill(id);
    version.tokenizer = crypto::sha256(as_bytes(tokenizer));
    version.chat_template = crypto::sha256(as_bytes(chat_template));
    ASSERT_TRUE(owner::write_served(at_ + "/served", "m", version));
  }
  void stage() {
    auto staged = stage_->app_assets(at_ + "/assets", at_ + "/served", {"m"});
    ASSERT_TRUE(staged) << staged.error().message;
    staged_ = *staged + "/models/m/";
  }
  std::string seen(const char* file) {
    auto text = os::read_file(staged_ + file, 1000);
    return text ? to_string(*text) : "absent";
  }
  std::string at_, staged_;
  std::optional<Stage> stage_;
};

TEST_F(AppAssets, AreThoseOnDiskBeforeTheOwnerHasLoadedAnything) {
  put("tokens 1", "template 1");
  stage();
  EXPECT_EQ(seen("tokenizer.img"), "tokens 1");
  EXPECT_EQ(seen("template.jinja"), "template 1");
}

// The fault this is for: a refused upgrade, then a recycle for another reason.
TEST_F(AppAssets, AreThoseOfTheVersionThatTheOwnerServes) {
  put("tokens 1", "template 1");
  stage();
  serve("tokens 1", "template 1");
  for (auto [tokenizer, chat_template] : {std::pair{"tokens 2", "template 2"},
                                          {"tokens 1", "template 2"},
                                          {"tokens 2", "template 1"},
                                          {"tokens 1", ""}}) {
    put(tokenizer, chat_template, "kv_cache = \"f16\"");
    stage();
    EXPECT_EQ(seen("tokenizer.img"), "tokens 1");
    EXPECT_EQ(seen("template.jinja"), "template 1");
    EXPECT_EQ(seen("model.toml"), "") << "all of a version or nothing";
  }
  put("tokens 2", "");
  serve("tokens 2", "");
  stage();
  EXPECT_EQ(seen("tokenizer.img"), "tokens 2");
  EXPECT_EQ(seen("template.jinja"), "absent") << "the new version has none";
}

// Weights alone were refused: what model.toml says of the new ones stays away, too.
TEST_F(AppAssets, ARecordOfAnotherModelWaitsForIt) {
  const std::string one(64, '1'), two(64, '2');
  put("tokens", "", "model_id = \"" + one + "\"");
  stage();
  serve("tokens", "", 0x11);
  put("tokens", "", "model_id = \"" + two + "\"");
  stage();
  EXPECT_NE(seen("model.toml").find(one), std::string::npos);
  serve("tokens", "", 0x22);
  stage();
  EXPECT_NE(seen("model.toml").find(two), std::string::npos);
}

// It has nothing but what lies on disk; what the earlier one held has ended with it.
TEST_F(AppAssets, AnOwnerThatStartsAnewServesWhatLiesOnDisk) {
  put("old", "");
  serve("old", "");
  stage();
  put("new", "");
  stage();
  EXPECT_EQ(seen("tokenizer.img"), "old") << "refused, or not loaded yet";
  owner::forget_served(at_ + "/served", "m");
  owner::forget_served(at_ + "/served", "other");
  stage();
  EXPECT_EQ(seen("tokenizer.img"), "new");
}

TEST_F(AppAssets, WhatTheOwnerSaysIsReadOrIgnoredWhole) {
  serve("tokens", "template");
  ASSERT_TRUE(owner::read_served(at_ + "/served", "m"));
  EXPECT_EQ(owner::read_served(at_ + "/served", "m")->tokenizer, crypto::sha256(as_bytes("tokens")));
  EXPECT_FALSE(owner::read_served(at_ + "/served", "other"));
  const std::string hex(64, 'a');
  for (const std::string& text :
       {std::string(), "model_id " + hex + "\n", "model_id " + hex + "\ntokenizer.img " + hex + "\n",
        "model_id " + hex.substr(2) + "\ntokenizer.img " + hex + "\ntemplate.jinja " + hex + "\n",
        "model_id " + hex + "\ntokenizer.img " + hex + "\ntemplate.jinja " + hex, std::string(5000, 'x')}) {
    write("served/m", text);
    EXPECT_FALSE(owner::read_served(at_ + "/served", "m")) << text;
  }
}

// Its reader here is the launcher, which the node waits for, and which sees files that the owner does not.
TEST_F(AppAssets, WhatTheOwnerPutsThereInsteadOfAFileIsNotFollowedNorWaitedFor) {
  serve("tokens", "template");
  const std::string served = at_ + "/served/m";
  fs::rename(served, at_ + "/elsewhere");
  fs::create_symlink(at_ + "/elsewhere", served);
  ASSERT_FALSE(owner::read_served(at_ + "/served", "m"));
  fs::remove(served);
  ASSERT_EQ(::mkfifo(served.c_str(), 0600), 0);
  EXPECT_FALSE(owner::read_served(at_ + "/served", "m"));
}

}  // namespace
}  // namespace tie::launcher
