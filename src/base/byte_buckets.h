// The one padding rule of the product: every event and request that leaves a process towards the network has a
// serialized plaintext size in {128, 256, 512, 1024, 2048, 4096, then multiples of 4096} bytes. The filler is a
// protobuf `bytes` field whose number is above 15 and below 2048 (a two-byte tag) and which the receiver ignores; the
// 4-byte length prefix of the stream counts inside the bucket. Pure functions, no state. Source: ARCHITECTURE.md, "What
// the network can see".
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

namespace tie {

constexpr size_t kSmallestBucket = 128;
constexpr size_t kLargestPowerBucket = 4096;

// The smallest bucket that holds `size` bytes.
size_t bucket_for(size_t size);
bool is_bucket(size_t size);

// How long the filler's content must be so that a message of `unpadded_size` bytes (length prefix included) plus the
// filler field (two tag bytes, a varint length, the content) is exactly one bucket. Some sizes cannot be hit in the
// smallest fitting bucket, because the varint grows at 128 and 16384: then the content is for the next bucket that can
// be. nullopt: already a bucket.
std::optional<size_t> filler_content_size(size_t unpadded_size);

}  // namespace tie
