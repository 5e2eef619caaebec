#include "request/cloud_app/delta_padding/delta_padding.h"

#include <gtest/gtest.h>

#include "base/byte_buckets.h"
#include "inference.pb.h"

namespace tie::request {
namespace {

TEST(DeltaPadding, EveryTextLengthGivesOneBucketAndTheSameMessage) {
  for (size_t length = 0; length < 40000; length += length < 5000 ? 1 : 13) {
    v1::ResponseMessage message;
    message.mutable_event()->set_text(std::string(length, 'x'));
    Bytes padded = pad_message(message.SerializeAsString());
    ASSERT_TRUE(is_bucket(padded.size())) << length;
    // One length of filler cannot be written (the varint grows there): then, and only then, the next bucket is taken.
    ASSERT_LE(padded.size(), bucket_for(bucket_for(message.ByteSizeLong() + 4 + 3) + 1));
    ASSERT_EQ(load_u32_be(padded.data()), padded.size() - 4);
    v1::ResponseMessage back;
    ASSERT_TRUE(back.ParseFromArray(padded.data() + 4, static_cast<int>(padded.size() - 4)));
    ASSERT_EQ(back.event().text().size(), length);
  }
}

TEST(DeltaPadding, TheFinalSummaryIsInTheSmallestBucketWhateverItSays) {
  for (int status = 0; status <= 4; ++status) {
    v1::ResponseMessage message;
    message.mutable_final()->set_status(static_cast<v1::FinalSummary::Status>(status));
    EXPECT_EQ(pad_message(message.SerializeAsString()).size(), kSmallestBucket);
  }
}

}  // namespace
}  // namespace tie::request
