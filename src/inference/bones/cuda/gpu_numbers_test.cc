#include "inference/bones/cuda/gpu_numbers.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tie::bones::cuda {
namespace {

namespace fs = std::filesystem;

using Numbers = std::vector<uint32_t>;

class GpuNumbersTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-gpus-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string folder_;
};

TEST_F(GpuNumbersTest, TheNodesSayWhichGpusAreVisible) {
  EXPECT_TRUE(visible_gpus(folder_).empty());
  for (const char* node : {"nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia31", "nvidia32", "nvidia2x"})
    write(node, "");
  EXPECT_EQ(visible_gpus(folder_), (Numbers{2, 10, 31}));
}

TEST_F(GpuNumbersTest, RanksTakeTheVisibleOnesInOrder) {
  const Numbers visible{2, 5};
  EXPECT_EQ(usual_gpu_of_rank(0, visible).value(), 2u);
  EXPECT_EQ(usual_gpu_of_rank(1, visible).value(), 5u);
  auto third = usual_gpu_of_rank(2, visible);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, Code::kNotFound);
  EXPECT_EQ(usual_gpu_of_rank(3, Numbers{}).value(), 3u) << "an emulated driver has no nodes";
}

TEST_F(GpuNumbersTest, TheDriversWordDecidesWhatAGpuIsCountedAs) {
  // Counted in another order than their nodes, as the fastest first.
  write("gpus/0000:3b:00.0/information", "Model: \t\t Some GPU\nIRQ:   \t\t 12\nDevice Minor: \t 1\n");
  write("gpus/0000:af:00.0/information", "Model: \t\t Some GPU\nDevice Minor: \t 0\n");
  const std::vector<std::string> addresses{"0000:3B:00.0", "0000:AF:00.0"};
  const Numbers visible{0, 1};
  EXPECT_EQ(count_of_gpu(1, addresses, visible, folder_ + "/gpus").value(), 0);
  EXPECT_EQ(count_of_gpu(0, addresses, visible, folder_ + "/gpus").value(), 1);
  EXPECT_EQ(count_of_gpu(2, addresses, visible, folder_ + "/gpus").error().code, Code::kNotFound);
}

TEST_F(GpuNumbersTest, WithoutItsWordTheOrderOfTheNodesDoes) {
  const std::vector<std::string> addresses{"0000:00:00.0", "0000:01:00.0"};
  EXPECT_EQ(count_of_gpu(3, addresses, Numbers{2, 3}, folder_).value(), 1);
  EXPECT_EQ(count_of_gpu(2, addresses, Numbers{2, 3}, folder_).value(), 0);
  EXPECT_EQ(count_of_gpu(0, addresses, Numbers{2, 3}, folder_).error().code, Code::kNotFound);
  EXPECT_EQ(count_of_gpu(4, addresses, Numbers{2, 3, 4}, folder_).error().code, Code::kNotFound)
      << "a node that the driver does not open";
  EXPECT_EQ(count_of_gpu(1, addresses, Numbers{}, folder_).value(), 1);
  EXPECT_EQ(count_of_gpu(2, addresses, Numbers{}, folder_).error().code, Code::kNotFound);
  write("0000:00:00.0/information", "Device Minor: \t none\n");
  EXPECT_EQ(count_of_gpu(2, addresses, Numbers{2, 3}, folder_).value(), 0) << "a word that is no number is none";
}

}  // namespace
}  // namespace tie::bones::cuda
