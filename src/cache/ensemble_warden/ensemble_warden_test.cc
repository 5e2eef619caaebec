#include "cache/ensemble_warden/ensemble_warden.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace tie::cache {
namespace {

CacheIdentity identity(uint8_t seed = 1) {
  CacheIdentity id;
  id.model_id.fill(seed);
  id.release_id.fill(seed + 1);
  id.layout_id.fill(seed + 2);
  return id;
}

SecretBytes turn_key(uint8_t fill = 7) {
  SecretBytes key(32);
  for (uint8_t& b : key.span()) b = fill;
  return key;
}

const SegmentShape kShape{.first_token = 32, .block_count = 3, .block_tokens = 16, .block_bytes = 1000};

struct SealedSegment {
  SegmentReference reference;
  Bytes bytes;
};

Bytes plain_block(uint32_t index) {
  return Bytes(kShape.block_bytes, static_cast<uint8_t>(40 + index));
}

SealedSegment sealed_segment(uint8_t key_fill = 7, uint8_t identity_seed = 1) {
  EnsembleWarden warden(identity(identity_seed));
  EXPECT_TRUE(warden.set_key(turn_key(key_fill)));
  std::vector<Bytes> blocks = {plain_block(0), plain_block(1), plain_block(2)};
  SealedSegment out;
  out.bytes.resize(*EnsembleWarden::sealed_segment_bytes(kShape));
  out.reference = *warden.seal_segment(kShape, [&](uint32_t i) -> ByteView { return blocks[i]; }, out.bytes);
  return out;
}

struct Opened {
  Result<void> result;
  std::vector<Bytes> blocks;
  bool spent;
};

Opened open(const SealedSegment& segment, uint8_t key_fill = 7, uint8_t identity_seed = 1) {
  EnsembleWarden warden(identity(identity_seed));
  EXPECT_TRUE(warden.set_key(turn_key(key_fill)));
  Opened out{.result = {}, .blocks = std::vector<Bytes>(3, Bytes(kShape.block_bytes, 0xee)), .spent = false};
  out.result = warden.open_segment(segment.reference, kShape, segment.bytes,
                                   [&](uint32_t i) -> std::span<uint8_t> { return out.blocks[i]; });
  out.spent = warden.spent();
  return out;
}

TEST(EnsembleWarden, OpensWhatItSealed) {
  Opened opened = open(sealed_segment());
  ASSERT_TRUE(opened.result);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(opened.blocks[i], plain_block(i));
}

TEST(EnsembleWarden, NeverSealsTheSameBlocksTwiceAlike) {
  SealedSegment a = sealed_segment(), b = sealed_segment();
  EXPECT_NE(a.bytes, b.bytes);
  EXPECT_NE(a.reference.salt, b.reference.salt);
  EXPECT_EQ(as_text(a.bytes).find(std::string(8, 40)), std::string_view::npos);
}

TEST(EnsembleWarden, RefusesAnotherKeyAnotherModelAndAnyFlippedBit) {
  SealedSegment good = sealed_segment();
  for (Opened refused : {open(good, 8, 1), open(good, 7, 2)}) {
    EXPECT_EQ(refused.result.error().code, Code::kCorrupt);
    EXPECT_TRUE(refused.spent);
    EXPECT_NE(refused.blocks[0], plain_block(0));
  }
  for (size_t at = 0; at < good.bytes.size(); at += 37) {
    SealedSegment bad = good;
    bad.bytes[at] ^= 0x10;
    ASSERT_FALSE(open(bad).result) << at;
    bad.reference.digest = EnsembleWarden::segment_digest(
        kShape, bad.bytes);  // even a manifest that names the changed bytes does not help
    ASSERT_FALSE(open(bad).result) << at;
  }
}

TEST(EnsembleWarden, ZeroesBlocksAlreadyOpenedWhenALaterOneFails) {
  SealedSegment bad = sealed_segment();
  bad.bytes.back() ^= 1;
  bad.reference.digest = EnsembleWarden::segment_digest(kShape, bad.bytes);
  Opened opened = open(bad);
  ASSERT_FALSE(opened.result);
  EXPECT_EQ(opened.blocks[0], Bytes(kShape.block_bytes, 0));
  EXPECT_EQ(opened.blocks[1], Bytes(kShape.block_bytes, 0));
}

TEST(EnsembleWarden, RefusesTruncatedAndSwappedSegments) {
  SealedSegment a = sealed_segment(), b = sealed_segment();
  std::swap(a.bytes, b.bytes);
  EXPECT_FALSE(open(a).result);
  SealedSegment cut = sealed_segment();
  cut.bytes.resize(cut.bytes.size() - 1016);
  EXPECT_FALSE(open(cut).result);
}

TEST(EnsembleWarden, IsSpentAfterAFailureAndTakesAKeyOnce) {
  EnsembleWarden warden(identity());
  EXPECT_EQ(warden.manifest_id().error().code, Code::kFailedPrecondition);
  ASSERT_TRUE(warden.set_key(turn_key()));
  EXPECT_FALSE(warden.set_key(turn_key()));
  ASSERT_TRUE(warden.manifest_id());
  EXPECT_FALSE(warden.open_manifest(Bytes(100, 0)));
  EXPECT_EQ(warden.manifest_id().error().code, Code::kFailedPrecondition);
  EXPECT_FALSE(warden.set_key(turn_key()));
}

TEST(EnsembleWarden, ManifestRoundTripsAndHidesItsTokens) {
  Manifest manifest;
  for (int i = 0; i < 1000; ++i) manifest.tokens.push_back(i * 17);
  manifest.segments = {sealed_segment().reference, sealed_segment().reference};
  EnsembleWarden writer(identity()), reader(identity()), stranger(identity(9));
  ASSERT_TRUE(writer.set_key(turn_key()) && reader.set_key(turn_key()) && stranger.set_key(turn_key()));
  Bytes sealed = *writer.seal_manifest(manifest);
  auto opened = reader.open_manifest(sealed);
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->tokens, manifest.tokens);
  ASSERT_EQ(opened->segments.size(), 2u);
  EXPECT_EQ(opened->segments[1].salt, manifest.segments[1].salt);
  EXPECT_EQ(opened->segments[1].digest, manifest.segments[1].digest);
  EXPECT_FALSE(stranger.open_manifest(sealed));
}

TEST(EnsembleWarden, StoreIdsDependOnTheKeyAlone) {
  EnsembleWarden a(identity(1)), b(identity(5)), c(identity(1));
  ASSERT_TRUE(a.set_key(turn_key(1)) && b.set_key(turn_key(1)) && c.set_key(turn_key(2)));
  EXPECT_EQ(*a.manifest_id(), *b.manifest_id());
  EXPECT_NE(*a.manifest_id(), *c.manifest_id());
  SegmentReference segment = sealed_segment().reference;
  EXPECT_NE(*a.segment_id(segment), *c.segment_id(segment));
  EXPECT_NE(*a.segment_id(segment), *a.manifest_id());
}

}  // namespace
}  // namespace tie::cache
