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
  EXPECT_TRUE(record->gpus.empty());
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

TEST_F(RecordTest, NamesAGpuForEachRank) {
  auto record = read("ranks = 2\nstages = 2\ndevice = \"cuda\"\ngpus = [7, 0, 31, 2]\n");
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->gpus, (std::vector<uint32_t>{7, 0, 31, 2}));
  EXPECT_TRUE(read("gpus = [4, 5]\n")) << "on the CPU for a while";
  for (auto [text, words] :
       {std::pair{"device = \"cuda\"\nranks = 2\ngpus = [1]", "names 1, and the model has 2 ranks"},
        {"device = \"auto\"\ngpus = []", "names 0, and the model has 1 ranks"},
        {"device = \"cuda\"\nranks = 2\ngpus = [1, 1]", "names 1 twice"},
        {"gpus = 1", "a list of numbers"},
        {"gpus = \"0,1\"", "a list of numbers"},
        {"gpus = [32]", "from 0 to 31"},
        {"gpus = [-1]", "from 0 to 31"},
        {"gpus = [1.5]", "from 0 to 31"},
        {"gpus = [\"1\"]", "from 0 to 31"}}) {
    auto bad = read(text);
    ASSERT_FALSE(bad) << text;
    EXPECT_EQ(bad.error().code, Code::kBadRequest);
    EXPECT_NE(bad.error().message.find(words), std::string::npos) << bad.error().message;
  }
}

// What the owner loads again for: each key by itself.
TEST_F(RecordTest, EachKeyChangesTheSummary) {
  for (const char* text : {"ranks = 2", "stages = 2", "device = \"cuda\"", "device = \"auto\"", "kv_cache = \"q8\"",
                           "gpus = [0]", "gpu_fast_kernels = false"}) {
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
