#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>
#include <vector>

#include "base/byte_buckets.h"
#include "base/bytes.h"
#include "base/random.h"
#include "base/result.h"
#include "base/secret_bytes.h"

namespace tie {

TEST(ByteBuckets, EverySizeUpToSixtyThousandLandsExactlyInABucket) {
  for (size_t size = 1; size < 60'000; ++size) {
    auto content = filler_content_size(size);
    size_t total = size;
    if (content) {
      size_t length_bytes = *content < 128 ? 1 : *content < 16384 ? 2 : 3;
      total = size + 2 + length_bytes + *content;
    }
    ASSERT_TRUE(is_bucket(total)) << size << " became " << total;
    ASSERT_LE(total, bucket_for(size + 3) + 4096) << size;
  }
}

TEST(ByteBuckets, KnowsTheSet) {
  for (size_t good : {128, 256, 512, 1024, 2048, 4096, 8192, 12288}) EXPECT_TRUE(is_bucket(good));
  for (size_t bad : {0, 1, 127, 129, 384, 3072, 4097, 6144}) EXPECT_FALSE(is_bucket(bad));
}

TEST(Hex, RoundTripsAndRefusesRubbish) {
  Bytes raw = {0x00, 0xff, 0x1a};
  EXPECT_EQ(to_hex(raw), "00ff1a");
  EXPECT_EQ(*from_hex("00FF1a"), raw);
  EXPECT_FALSE(from_hex("0"));
  EXPECT_FALSE(from_hex("zz"));
}

TEST(ErrorTable, RowsStandAtTheirCode) {
  for (int i = 0; i <= static_cast<int>(Code::kIo); ++i)
    EXPECT_EQ(static_cast<int>(error_info(static_cast<Code>(i)).code), i);
  EXPECT_EQ(error_info(static_cast<Code>(200)).code, Code::kInternal);
}

TEST(SecretBytes, MovedFromIsEmptyAndCloneIsEqual) {
  SecretBytes a = random_secret(32);
  SecretBytes b = a.clone();
  EXPECT_TRUE(equal_constant_time(a.view(), b.view()));
  SecretBytes c = std::move(a);
  EXPECT_TRUE(a.empty());
  EXPECT_TRUE(equal_constant_time(c.view(), b.view()));
}

static bool all_are(ByteView bytes, uint8_t value) {
  return std::ranges::all_of(bytes, [&](uint8_t byte) { return byte == value; });
}

TEST(SecretBytes, BeginsAsZerosAndSharesNothing) {
  constexpr size_t kSizes[] = {1, 32, 64, 65, 256, 257, 1024, 1025, 5000};
  for (int round = 0; round < 3; ++round) {  // later rounds meet memory that was used before
    std::vector<SecretBytes> held;
    for (int i = 0; i < 100; ++i) {
      SecretBytes& secret = held.emplace_back(kSizes[static_cast<size_t>(i) % std::size(kSizes)]);
      ASSERT_TRUE(all_are(secret.view(), 0)) << secret.size();
      std::ranges::fill(secret.span(), static_cast<uint8_t>(i + 1));
    }
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(all_are(held[static_cast<size_t>(i)].view(), static_cast<uint8_t>(i + 1)));
      if (i % 3 == 0) held[static_cast<size_t>(i)].wipe();
    }
  }
}

TEST(SecretBytes, ThreadsMayEachMakeTheirOwn) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint8_t value = 1; value <= 4; ++value) {
    threads.emplace_back([&wrong, value] {
      for (int i = 0; i < 2000; ++i) {
        SecretBytes secret(48);
        if (!all_are(secret.view(), 0)) ++wrong;
        std::ranges::fill(secret.span(), value);
        SecretBytes moved = std::move(secret);
        if (!all_are(moved.view(), value)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// The kernel's flags of the mapping that holds an address.
static std::string mapping_flags(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      auto at = reinterpret_cast<unsigned long>(address);
      inside = begin <= at && at < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line;
    }
  }
  return "";
}

TEST(SecretBytes, LiesOutsideOfCoreDumps) {
  for (size_t size : {32, 200, 1000, 3000}) {
    SecretBytes secret(size);
    EXPECT_NE(mapping_flags(secret.data()).find(" dd"), std::string::npos) << size;
  }
  Bytes plain(32);
  EXPECT_EQ(mapping_flags(plain.data()).find(" dd"), std::string::npos);
}

TEST(Bytes, BigEndianRoundTrip) {
  Bytes out;
  append_u32_be(out, 0x01020304);
  append_u64_be(out, 0x05060708090a0b0cULL);
  EXPECT_EQ(to_hex(out), "0102030405060708090a0b0c");
  EXPECT_EQ(load_u32_be(out.data()), 0x01020304u);
  EXPECT_EQ(load_u64_be(out.data() + 4), 0x05060708090a0b0cULL);
}

}  // namespace tie
