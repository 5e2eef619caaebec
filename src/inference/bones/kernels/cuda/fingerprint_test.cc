// Fingerprints by the kernel against those that Python's hashlib makes of the same bytes.
#include "inference/bones/kernels/cuda/fingerprint.h"

#include <gtest/gtest.h>

#include "inference/bones/kernels/cuda/kernel_test_support.h"

namespace tie::bones::cuda {
namespace {

struct Golden {
  uint64_t bytes;
  std::vector<std::string> fingerprints;
};

// sha256(b"".join(sha256(leaf) for leaf in part)), leaves of 16 KiB, parts of 128 of them.
const Golden kGolden[] = {
    {64, {"f54ce2b6f6e8d2790cfdb4e6b543b09ef25f0cb8e6fb6615c2ca005cc4d8ab07"}},
    {16384, {"f5b92cb7f41357b257848a2bb1dbab8189a65a7eb7081f00f9c022de3893e982"}},
    {32768, {"84935094e4d5f78de913e7f353fe7327277ddfc313929c51cdeddeacb44f8f96"}},
    {49472, {"ed07c8062595b8c1f506620df8c2a37e206ac382d0a93643dbe0273e94f9de73"}},
    {2097152, {"0c28253c22e21d58b0a97592c7fb5afdd864f75469890be1ad20fb08b3a6c971"}},
    {2097216,
     {"0c28253c22e21d58b0a97592c7fb5afdd864f75469890be1ad20fb08b3a6c971",
      "123de9637741d989c9ba86963717561c3326ed078c474f397ac7ce9f904de54a"}},
    {2146304,
     {"0c28253c22e21d58b0a97592c7fb5afdd864f75469890be1ad20fb08b3a6c971",
      "0aefe369ae9895a7ab47a0e599a58410491be42769bf648121c8c6a6816d905b"}},
};

// A byte is bits 24 to 31 of its place times 2654435761.
Bytes test_bytes(uint64_t n) {
  Bytes out(n + 16);  // from a 16-byte boundary on
  for (uint64_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  return out;
}

std::vector<uint32_t> words_of(const Bytes& data, uint64_t bytes) {
  const uint64_t parts = (bytes + kFingerprintPartBytes - 1) / kFingerprintPartBytes;
  std::vector<uint32_t> out(parts * 8);
  const FingerprintArgs args{data.data(), bytes, out.data()};
  run_in_orders(out, [&](uint64_t seed) {
    run("tie_fingerprint", args, {static_cast<uint32_t>(parts), 1, 1}, kFingerprintSharedBytes, seed);
  });
  return out;
}

std::string hex(const uint32_t* words) {
  char text[65];
  for (int i = 0; i < 8; ++i) std::snprintf(text + 8 * i, 9, "%08x", words[i]);
  return text;
}

TEST(FingerprintTest, IsTheTreeThatHashlibMakes) {
  for (const Golden& golden : kGolden) {
    const Bytes data = test_bytes(golden.bytes);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data.data()) % 16, 0u);
    const std::vector<uint32_t> words = words_of(data, golden.bytes);
    ASSERT_EQ(words.size(), 8 * golden.fingerprints.size());
    for (size_t part = 0; part < golden.fingerprints.size(); ++part)
      EXPECT_EQ(hex(words.data() + 8 * part), golden.fingerprints[part]) << golden.bytes << ", part " << part;
  }
}

// Every bit of a message counts: one in each place of a word, in words all over three leaves.
TEST(FingerprintTest, ChangesWithEveryBit) {
  constexpr uint64_t kBytes = 2 * kFingerprintLeafBytes + 128;
  Bytes data = test_bytes(kBytes);
  const std::vector<uint32_t> before = words_of(data, kBytes);
  for (uint64_t bit = 0; bit < kBytes * 8; bit += 8 * 1021 + 1) {
    data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_NE(words_of(data, kBytes), before) << bit;
    data[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
  EXPECT_EQ(words_of(data, kBytes), before);
}

}  // namespace
}  // namespace tie::bones::cuda
