#include "supervision/model_owner/model_record.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "os/fd.h"

namespace tie::owner {
namespace {

class RecordTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-record-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Result<ModelRecord> read(std::string_view text) {
    EXPECT_TRUE(os::write_file_atomic(folder_ + "/model.toml", as_bytes(text)));
    return read_model_record(folder_);
  }
  std::string folder_;
};

TEST_F(RecordTest, SaysNothingWhereThereIsNone) {
  auto record = read_model_record(folder_);
  ASSERT_TRUE(record);
  EXPECT_TRUE(record->grid.alone());
  EXPECT_EQ(record->device, DeviceWish::kCpu);
  EXPECT_EQ(record->kv_cache, "");
  EXPECT_TRUE(record->gpu_fast_kernels);
  EXPECT_EQ(record->summary(), "");
}

TEST_F(RecordTest, HoldsAllThatARecordSays) {
  auto record = read(
      "ranks = 2\nstages = 3\ndevice = \"auto\"\nkv_cache = \"f16\"\ngpu_fast_kernels = false\n"
      "name = \"other things too\"\n");
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->grid, (bones::RankPlace{0, 2, 0, 3}));
  EXPECT_EQ(record->device, DeviceWish::kAuto);
  EXPECT_EQ(record->kv_cache, "f16");
  EXPECT_FALSE(record->gpu_fast_kernels);
}

// What the owner loads again for: each key by itself.
TEST_F(RecordTest, EachKeyChangesTheSummary) {
  for (const char* text : {"ranks = 2", "stages = 2", "device = \"cuda\"", "device = \"auto\"", "kv_cache = \"q8\"",
                           "gpu_fast_kernels = false"}) {
    auto record = read(text);
    ASSERT_TRUE(record) << text;
    EXPECT_NE(record->summary(), "") << text;
  }
}

TEST_F(RecordTest, NamesTheKeyWhoseValueIsNone) {
  for (auto [text, key] : {std::pair{"ranks = 0", "ranks"},
                           {"ranks = 65", "ranks"},
                           {"ranks = -1", "ranks"},
                           {"stages = \"two\"", "stages"},
                           {"device = \"gpu\"", "device"},
                           {"device = 1", "device"},
                           {"kv_cache = \"q4\"", "kv_cache"},
                           {"kv_cache = 8", "kv_cache"},
                           {"kv_cache = \"\"", "kv_cache"},
                           {"gpu_fast_kernels = \"no\"", "gpu_fast_kernels"},
                           {"gpu_fast_kernels = 0", "gpu_fast_kernels"}}) {
    auto record = read(text);
    ASSERT_FALSE(record) << text;
    EXPECT_EQ(record.error().code, Code::kBadRequest) << text;
    EXPECT_NE(record.error().message.find(std::string("model.toml")), std::string::npos) << record.error().message;
    EXPECT_NE(record.error().message.find(key), std::string::npos) << record.error().message;
  }
  EXPECT_EQ(read("ranks = ").error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace tie::owner
