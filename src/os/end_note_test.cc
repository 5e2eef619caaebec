#include "os/end_note.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tie::os {
namespace {

class EndNoteTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-end-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = end_note_path(folder_ + "/runtime.sock");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void put(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }

  std::string folder_, path_;
};

TEST_F(EndNoteTest, TheLastWordCountsAndAFreshStartSaysNothing) {
  EXPECT_EQ(read_end_note(path_).step, EndStep::kUnsaid) << "no file";
  auto note = EndNote::create(path_);
  ASSERT_TRUE(note) << note.error().message;
  EXPECT_EQ(read_end_note(path_).step, EndStep::kUnsaid) << "it has not ended";
  note->write(EndStep::kServing, Code::kInternal);
  note->write(EndStep::kAttachingModel, Code::kNotReady);
  EXPECT_EQ(read_end_note(path_).sentence(), "it could not attach the model from tie-model-owner (NOT_READY)");
  ASSERT_TRUE(EndNote::create(path_));
  EXPECT_EQ(read_end_note(path_).sentence(), "it was killed or crashed");
}

TEST_F(EndNoteTest, OnlyTheTablesWordsComeOut) {
  for (const std::string& bytes : {std::string("What the user said"), std::string("x"), std::string()}) {
    put(bytes);
    EXPECT_EQ(read_end_note(path_).sentence(), "it was killed or crashed") << bytes;
  }
  put("\xff\xff");
  EXPECT_EQ(read_end_note(path_).sentence(), "it was killed or crashed (INTERNAL)");
}

// What a compromised writer may have put in the note's place.
TEST_F(EndNoteTest, NeitherALinkNorAPipeIsRead) {
  const std::string other = folder_ + "/other";
  std::ofstream(other, std::ios::binary) << std::string{static_cast<char>(EndStep::kServing), 0};
  std::filesystem::create_symlink(other, path_);
  EXPECT_EQ(read_end_note(path_).step, EndStep::kUnsaid);
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(read_end_note(path_).step, EndStep::kUnsaid) << "and at once, though nobody writes";
}

TEST_F(EndNoteTest, EachStepHasItsOwnRow) {
  for (int i = 0; i <= static_cast<int>(EndStep::kDiscardingPrefix); ++i)
    EXPECT_EQ(static_cast<int>(end_step_info(static_cast<EndStep>(i)).step), i);
}

TEST_F(EndNoteTest, WithoutAPlaceNothingIsWritten) {
  EXPECT_FALSE(EndNote::create(folder_ + "/no/such/folder"));
  EndNote().write(EndStep::kServing, Code::kInternal);
}

}  // namespace
}  // namespace tie::os
