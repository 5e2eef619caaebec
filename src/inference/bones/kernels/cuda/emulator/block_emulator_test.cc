// The emulator must see what it is there to see.
#include "inference/bones/kernels/cuda/emulator/block_emulator.h"

#include <gtest/gtest.h>

#include "inference/bones/kernels/cuda/device.h"

namespace tie::bones::cuda {
namespace {

constexpr EmulatedLaunch kTwoWarps{.threads = 64, .shared_bytes = 1024};

std::string fault_of(const BlockEmulator::Body& body, EmulatedLaunch launch = kTwoWarps) {
  auto ran = BlockEmulator().run(launch, body);
  return ran ? "" : ran.error().message;
}

TEST(BlockEmulator, SumsOverABlockInAnyOrderOfThreads) {
  for (uint64_t seed : {0, 1, 2, 3}) {
    EmulatedLaunch launch = kTwoWarps;
    launch.order_seed = seed;
    launch.grid = {3, 2, 2};
    float total = 0;
    EXPECT_EQ(fault_of(
                  [&](EmulatedBlock& b) {
                    const float sum = block_sum(b, static_cast<float>(b.thread() + b.block_x()), 0);
                    if (b.thread() == 0) total += sum;
                  },
                  launch),
              "");
    EXPECT_EQ(total, 12 * 2016.0f + 4 * 64 * (0 + 1 + 2));
  }
}

TEST(BlockEmulator, SeesARaceBetweenBarriers) {
  const std::string said = fault_of([](EmulatedBlock& b) {
    auto s = b.shared<float>(0, 64);
    s[b.thread()] = 1.0f;
    const float neighbour = s[(b.thread() + 1) % 64];  // no barrier in between
    b.sync();
    s[b.thread()] = neighbour;
  });
  EXPECT_NE(said.find("race"), std::string::npos) << said;
}

TEST(BlockEmulator, SeesTwoWritersAndLetsReadersBe) {
  EXPECT_NE(fault_of([](EmulatedBlock& b) { b.shared<uint32_t>(0, 4)[0] = b.thread(); }).find("race"),
            std::string::npos);
  EXPECT_EQ(fault_of([](EmulatedBlock& b) {
              auto s = b.shared<uint32_t>(0, 4);
              if (b.thread() == 0) s[0] = 7u;
              b.sync();
              EXPECT_EQ(s[0], 7u);
              b.sync();
              if (b.thread() == 63) s[0] = 8u;
            }),
            "");
  // Halves of a word are elements of their own.
  EXPECT_EQ(fault_of([](EmulatedBlock& b) { b.shared<uint16_t>(0, 64)[b.thread()] = 1; }), "");
}

TEST(BlockEmulator, SeesAMissingThreadAtABarrierOrShuffle) {
  EXPECT_NE(fault_of([](EmulatedBlock& b) {
              if (b.thread() != 5) b.sync();
            }).find("never reach"),
            std::string::npos);
  EXPECT_NE(fault_of([](EmulatedBlock& b) {
              if (b.thread() % 2 == 0) (void)b.shuffle_xor(1.0f, 1);
            }).find("never reach"),
            std::string::npos);
}

TEST(BlockEmulator, SeesAccessOutsideAndSharedMemoryThatNobodyWrote) {
  EXPECT_NE(fault_of([](EmulatedBlock& b) { b.shared<float>(0, 64)[64] = 1.0f; }).find("index 64"), std::string::npos);
  EXPECT_NE(fault_of([](EmulatedBlock& b) { b.shared<float>(1020, 64)[b.thread()] = 1.0f; }).find("outside"),
            std::string::npos);
  EXPECT_EQ(fault_of([](EmulatedBlock& b) { EXPECT_NE(static_cast<uint32_t>(b.shared<uint32_t>(0, 4)[1]), 0u); }), "");
}

TEST(BlockEmulator, MultipliesTilesAsTheTensorCoresDo) {
  // a[row][k] = row + k, b[k][column] = k - column: small whole numbers, exact in bf16 and in the sum.
  float d[16][8] = {};
  EmulatedLaunch one_warp{.threads = 32};
  ASSERT_EQ(fault_of(
                [&](EmulatedBlock& b) {
                  const uint32_t group = b.thread() / 4, pair = b.thread() % 4;
                  auto two = [](float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; };
                  uint32_t fa[4], fb[2];
                  for (uint32_t i = 0; i < 4; ++i) {
                    const uint32_t row = group + 8 * (i % 2), k = 2 * pair + 8 * (i / 2);
                    fa[i] = two(static_cast<float>(row + k), static_cast<float>(row + k + 1));
                  }
                  for (uint32_t i = 0; i < 2; ++i) {
                    const float k = static_cast<float>(2 * pair + 8 * i), column = static_cast<float>(group);
                    fb[i] = two(k - column, k + 1 - column);
                  }
                  float out[4] = {1, 1, 1, 1};
                  b.mma(out, fa, fb);
                  for (uint32_t i = 0; i < 4; ++i) d[group + 8 * (i / 2)][2 * pair + i % 2] = out[i];
                },
                one_warp),
            "");
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      float expected = 1;
      for (int k = 0; k < 16; ++k) expected += static_cast<float>((row + k) * (k - column));
      EXPECT_EQ(d[row][column], expected);
    }
}

}  // namespace
}  // namespace tie::bones::cuda
