#include <gtest/gtest.h>

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

TEST(Bytes, BigEndianRoundTrip) {
  Bytes out;
  append_u32_be(out, 0x01020304);
  append_u64_be(out, 0x05060708090a0b0cULL);
  EXPECT_EQ(to_hex(out), "0102030405060708090a0b0c");
  EXPECT_EQ(load_u32_be(out.data()), 0x01020304u);
  EXPECT_EQ(load_u64_be(out.data() + 4), 0x05060708090a0b0cULL);
}

}  // namespace tie
