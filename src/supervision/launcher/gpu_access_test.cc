#include "supervision/launcher/gpu_access.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

class GpuAccess : public ::testing::Test {
 protected:
  GpuAccess() {
    char name[] = "/tmp/tie-gpu-access-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~GpuAccess() override { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path_ + "/" + name).parent_path());
    std::ofstream(path_ + "/" + name) << text;
  }
  std::string path_;
};

TEST_F(GpuAccess, AModelWishesAGpuOnlyWhenItsRecordSaysSo) {
  for (auto [record, wishes] : {std::pair{"device = \"cuda\"\n", true},
                                {"device = \"auto\"\n", true},
                                {"device = \"cpu\"\n", false},
                                {"ranks = 2\n", false},
                                {"device = ", false}}) {
    write("models/m/model.toml", record);
    EXPECT_EQ(model_wishes_gpu(path_, "m"), wishes) << record;
  }
  EXPECT_FALSE(model_wishes_gpu(path_, "other"));
}

TEST_F(GpuAccess, OpensTheDriversNodesAndNothingElse) {
  EXPECT_TRUE(gpu_device_nodes(path_).empty());
  write("nvidia0", "");
  EXPECT_TRUE(gpu_device_nodes(path_).empty()) << "a GPU without its control node is of no use";
  for (const char* node : {"nvidiactl", "nvidia3", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "mem"})
    write(node, "");
  const auto nodes = gpu_device_nodes(path_);
  EXPECT_EQ(nodes, (std::vector<std::string>{path_ + "/nvidiactl", path_ + "/nvidia0", path_ + "/nvidia3",
                                             path_ + "/nvidia-uvm"}));
  os::SandboxProfile daemon, container;
  container.syscalls = os::SyscallPolicy::kContainer;
  allow_gpu(nodes, daemon);
  allow_gpu(nodes, container);
  EXPECT_EQ(daemon.syscalls, os::SyscallPolicy::kGpuDaemon);
  EXPECT_EQ(container.syscalls, os::SyscallPolicy::kGpuContainer);
  EXPECT_EQ(daemon.binds.size(), nodes.size());
  EXPECT_TRUE(daemon.proc);
  for (const os::Bind& bind : daemon.binds) EXPECT_TRUE(bind.device && !bind.writable && !bind.executable);
  EXPECT_TRUE(container.tmpfs.empty());
  allow_gpu_ranks(container);
  EXPECT_EQ(container.syscalls, os::SyscallPolicy::kGpuRanksContainer);
  EXPECT_EQ(container.tmpfs, std::vector<std::string>{"/dev/shm"});
}

using Numbers = std::vector<uint32_t>;

TEST_F(GpuAccess, GivesTheGpusOfTheRanksAlone) {
  const Numbers here{1, 2, 5, 7};
  for (auto [record, gpus] : {std::pair{"device = \"cuda\"\n", Numbers{1}},
                              {"device = \"auto\"\nranks = 2\n", Numbers{1, 2}},
                              {"device = \"cuda\"\nranks = 2\nstages = 3\n", here},
                              {"ranks = 4\n", Numbers{}},
                              {"gpus = [1]\n", Numbers{}},
                              {"device = \"cuda\"\nranks = -5\n", Numbers{1}},
                              {"device = \"cuda\"\nranks = 2\ngpus = [7, 2]\n", Numbers{7, 2}},
                              {"device = \"cuda\"\ngpus = [3]\n", Numbers{3}},
                              // The owner says what is wrong with these: no GPU is given for them.
                              {"device = \"cuda\"\ngpus = 2\n", Numbers{}},
                              {"device = \"cuda\"\ngpus = [-1]\n", Numbers{}},
                              {"device = \"cuda\"\ngpus = [32]\n", Numbers{}},
                              {"device = \"cuda\"\ngpus = [\"0\"]\n", Numbers{}}}) {
    write("models/m/model.toml", record);
    EXPECT_EQ(gpus_of_model(path_, "m", here), gpus) << record;
  }
  const std::vector<std::string> all{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia10",
                                     "/dev/nvidia-uvm"};
  EXPECT_EQ(gpu_numbers(all), (Numbers{0, 1, 10}));
  EXPECT_EQ(nodes_of_gpus(all, {0, 10}),
            (std::vector<std::string>{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia10", "/dev/nvidia-uvm"}));
  EXPECT_EQ(nodes_of_gpus(all, {1}), (std::vector<std::string>{"/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm"}));
  EXPECT_EQ(nodes_of_gpus(all, {3}), (std::vector<std::string>{"/dev/nvidiactl", "/dev/nvidia-uvm"}));
}

TEST_F(GpuAccess, ADriverMayLieElsewhere) {
  auto none = find_gpu_driver(path_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kNotFound);
  EXPECT_NE(none.error().message.find("libcuda.so.1 in " + path_), std::string::npos) << none.error().message;
  for (const char* folder : {"", "lib/", "usr/lib64/", "usr/lib/x86_64-linux-gnu/"}) {
    write(std::string("root/") + folder + "libcuda.so.1", "driver");
    write(std::string("root/") + folder + "libnvidia-ml.so.1", "management");
    auto driver = find_gpu_driver(path_ + "/root");
    ASSERT_TRUE(driver) << driver.error().message;
    EXPECT_EQ(driver->libraries[0], path_ + "/root/" + folder + "libcuda.so.1");
    EXPECT_EQ(driver->libraries[1], path_ + "/root/" + folder + "libnvidia-ml.so.1");
    fs::remove_all(path_ + "/root");
  }
  write("root/libcuda.so.1", "driver");
  write("root/dev/nvidiactl", "");
  write("root/dev/nvidia4", "");
  auto driver = find_gpu_driver(path_ + "/root");
  ASSERT_TRUE(driver);
  EXPECT_EQ(driver->nodes, (std::vector<std::string>{path_ + "/root/dev/nvidiactl", path_ + "/root/dev/nvidia4"}));
  os::SandboxProfile profile;
  allow_gpu(driver->nodes, profile);
  EXPECT_EQ(profile.binds[1].path, path_ + "/root/dev/nvidia4");
  EXPECT_EQ(profile.binds[1].at, "/dev/nvidia4") << "where the driver's library looks for it";
}

}  // namespace
}  // namespace tie::launcher
