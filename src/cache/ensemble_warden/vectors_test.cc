// What the independent implementation sealed (tests/integration/independent/kv_cache.py) opens here, and the ids agree.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cache/ensemble_warden/ensemble_warden.h"

namespace tie::cache {
namespace {

struct Vectors : ::testing::Test {
  nlohmann::json file = nlohmann::json::parse(std::ifstream(TIE_SOURCE_DIR "/tests/data/kv_cache/vectors.json"));
  Bytes bytes(const nlohmann::json& hex) { return *from_hex(hex.get<std::string>()); }
  crypto::Digest digest(const char* name) { return *crypto::digest_from(bytes(file[name]), name); }
  EnsembleWarden warden() {
    EnsembleWarden out({digest("model_id"), digest("release_id"), digest("layout_id")});
    EXPECT_TRUE(out.set_key(SecretBytes::copy_of(bytes(file["turn_key"]))));
    return out;
  }
};

TEST_F(Vectors, TheManifestAndEverySegmentOpen) {
  EnsembleWarden opener = warden();
  EXPECT_EQ(to_hex(*opener.manifest_id()), file["manifest_id"]);
  auto manifest = opener.open_manifest(bytes(file["manifest"]));
  ASSERT_TRUE(manifest) << manifest.error().message;
  EXPECT_EQ(manifest->tokens, file["tokens"].get<std::vector<int32_t>>());
  ASSERT_EQ(manifest->segments.size(), 2u);
  size_t block = 0;
  for (size_t s = 0; s < 2; ++s) {
    const SegmentReference& reference = manifest->segments[s];
    EXPECT_EQ(to_hex(*opener.segment_id(reference)), file["segment_ids"][s]);
    EXPECT_EQ(to_hex(reference.digest), file["digests"][s]);
    std::vector<Bytes> opened(reference.block_count, Bytes(100));
    ASSERT_TRUE(opener.open_segment(reference, {reference.first_token, reference.block_count, 16, 100},
                                    bytes(file["segments"][s]),
                                    [&](uint32_t i) -> std::span<uint8_t> { return opened[i]; }));
    for (const Bytes& one : opened) EXPECT_EQ(to_hex(one), file["blocks"][block++]);
  }
}

}  // namespace
}  // namespace tie::cache
