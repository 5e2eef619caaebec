#include "client/cli/node_commands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/random.h"
#include "inference/bones/kernel_check.h"
#include "inference/bones/model.h"

namespace tie::cli {
namespace {

// One that an operator may name and this CPU has not.
std::optional<std::string> missing_kernel_set() {
  const auto here = bones::available_kernel_sets();
  for (const char* name : {"amx", "avx512fp16", "avx512", "avx2"})
    if (std::ranges::find(here, name) == here.end()) return name;
  return std::nullopt;
}

struct Outcome {
  int code = 0;
  std::string out, error;
};
template <typename Command>
Outcome run(Command command, const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome{command(arguments), {}, {}};
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.error = testing::internal::GetCapturedStderr();
  return outcome;
}

class KernelSetCommands : public testing::Test {
 protected:
  void SetUp() override {
    file_ = std::filesystem::temp_directory_path() / ("node-" + random_hex(6) + ".toml");
    wanted_ = missing_kernel_set();
    if (!wanted_) GTEST_SKIP() << "this CPU runs every kernel set";
  }
  void TearDown() override { std::filesystem::remove(file_); }
  std::string config(const std::string& kernels) {
    std::ofstream(file_) << "kernels = \"" << kernels << "\"\n";
    return file_;
  }

  std::filesystem::path file_;
  std::optional<std::string> wanted_;
};

TEST(KernelCheck, NamesWhatTheCpuLacksAndWhatItRuns) {
  EXPECT_TRUE(bones::check_kernel_set(""));
  for (std::string_view name : bones::available_kernel_sets()) EXPECT_TRUE(bones::check_kernel_set(name)) << name;
  auto refused = bones::check_kernel_set("abacus");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnsupportedFeature);
  EXPECT_NE(refused.error().message.find("'abacus'"), std::string::npos);
  EXPECT_TRUE(refused.error().message.ends_with("reference")) << refused.error().message;
}

TEST_F(KernelSetCommands, UpRefusesBeforeItStartsAnything) {
  for (const auto& words : {std::vector<std::string>{"--kernels", *wanted_}, {"--config", config(*wanted_)}}) {
    auto outcome = run(up_command, words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.error.find("this CPU does not run the kernel set '" + *wanted_ + "'"), std::string::npos)
        << outcome.error;
  }
}

TEST_F(KernelSetCommands, DoctorSaysWhatAConfigurationCannotHave) {
  auto outcome = run(doctor_command, {"--json", "--config", config(*wanted_)});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("this CPU does not run the kernel set '" + *wanted_ + "'"), std::string::npos);
  outcome = run(doctor_command, {"--json", "--config", config("reference")});
  EXPECT_EQ(outcome.out.find("does not run the kernel set"), std::string::npos);
  EXPECT_NE(outcome.out.find("reference, as configured"), std::string::npos);
  outcome = run(doctor_command, {"--json", "--config", config("abacus")});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("kernels is one of"), std::string::npos);
}

}  // namespace
}  // namespace tie::cli
