// A GPU's model as the engine uses it, on the emulated driver: tokens drawn from the best ids that come back from the
// GPU are those drawn from whole rows.
#include "inference/hosts/server/gpu_model.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "inference/bones/testing/tiny_model.h"
#include "inference/engine/testing/best_choices.h"
#include "inference/hosts/server/gpu_ranks.h"
#include "os/memfd.h"
#include "os/process.h"

namespace tie::runtime_host {
namespace {

using namespace bones::cuda;

// What the owner hands over: the weights stay in `loaded`.
AttachedModel attached(const LoadedWeights& loaded) {
  AttachedModel out;
  const Bytes table = loaded.table.serialize();
  const os::Fd fd = os::create_memfd("table", table.size()).value();
  out.weights = os::Mapping::read_write(fd.get()).value();
  std::copy(table.begin(), table.end(), reinterpret_cast<uint8_t*>(out.weights.writable().data()));
  out.gpu.emplace();
  const IpcHandle handle = loaded.memory.share().value();
  std::copy(std::begin(handle.bytes), std::end(handle.bytes), out.gpu->handle.begin());
  out.gpu->bytes = loaded.table.bytes;
  return out;
}

TEST(GpuModel, TokensDrawnFromTheBestIdsAreThoseOfWholeRows) {
  bones::testing::TinyModelOptions tiny;
  tiny.architecture = "gemma2";
  const Bytes file = bones::testing::tiny_model(tiny);
  const auto driver = Driver::load(0, TIE_FAKE_CUDA).value();
  const LoadedWeights loaded = load_weights(driver, file).value();
  AttachedModel lent = attached(loaded);
  auto model = GpuModel::attach(lent, {.driver = TIE_FAKE_CUDA, .kernels = TIE_FAKE_CUDA},
                                {.max_batch_rows = 64, .max_logit_rows = 32, .max_sequences = 16});
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_TRUE((*model)->finds_best());
  engine::testing::expect_same_choices(**model, engine::testing::letter_table((*model)->config().n_vocab - 20),
                                       {.requests = 4,
                                        .seed = 60,
                                        .longest_prompt = 6,
                                        .most_tokens = 4,
                                        .max_rows = 64,
                                        .max_sequences = 16,
                                        .grammars = false});
}

TEST(GpuRanks, AHardenedProcessTellsNcclHowToMeet) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto is = [](const char* name, std::string_view value) {
      const char* set = ::getenv(name);
      return set != nullptr && set == value;
    };
    ::setenv("NCCL_RUNTIME_CONNECT", "1", 1);
    if (!os::harden_process() || ::getenv("NCCL_RUNTIME_CONNECT") != nullptr) ::_exit(2);
    settle_nccl();
    ::_exit(is("NCCL_SOCKET_IFNAME", "lo") && is("NCCL_IB_DISABLE", "1") && is("NCCL_RUNTIME_CONNECT", "0") ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

}  // namespace
}  // namespace tie::runtime_host
