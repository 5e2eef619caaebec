#include "base/byte_buckets.h"

namespace tie {
namespace {
size_t varint_size(size_t value) {
  size_t bytes = 1;
  while (value >= 128) {
    value >>= 7;
    ++bytes;
  }
  return bytes;
}
constexpr size_t kFillerTagBytes = 2;
}  // namespace

size_t bucket_for(size_t size) {
  size_t bucket = kSmallestBucket;
  while (bucket < kLargestPowerBucket && bucket < size) bucket *= 2;
  if (size <= bucket) return bucket;
  return (size + kLargestPowerBucket - 1) / kLargestPowerBucket * kLargestPowerBucket;
}

bool is_bucket(size_t size) {
  return size != 0 && bucket_for(size) == size;
}

std::optional<size_t> filler_content_size(size_t unpadded_size) {
  if (is_bucket(unpadded_size)) return std::nullopt;
  for (size_t bucket = bucket_for(unpadded_size + kFillerTagBytes + 1);; bucket = bucket_for(bucket + 1)) {
    size_t room = bucket - unpadded_size - kFillerTagBytes;
    for (size_t length_bytes = 1; length_bytes <= 5 && length_bytes <= room; ++length_bytes) {
      size_t content = room - length_bytes;
      if (varint_size(content) == length_bytes) return content;
    }
  }
}

}  // namespace tie
