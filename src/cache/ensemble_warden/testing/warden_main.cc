// EnsembleWarden behind one JSON object on standard input and one on standard output, so that an implementation in
// another language can be tried against it (tests/integration/independent/test_kv_cache.py). Bytes are hex. Tests only.
#include <iostream>
#include <nlohmann/json.hpp>

#include "cache/ensemble_warden/ensemble_warden.h"

namespace {

using namespace tie;
using nlohmann::json;

Result<Bytes> bytes_of(const json& request, const char* name) {
  return from_hex(request.at(name).get<std::string>());
}

Result<cache::EnsembleWarden> warden_of(const json& request) {
  TIE_TRY(Bytes key, bytes_of(request, "key"));
  TIE_TRY(Bytes ids, bytes_of(request, "identity"));
  if (ids.size() != 96) return fail(Code::kBadRequest, "an identity is 96 bytes long");
  cache::CacheIdentity identity;
  TIE_TRY(identity.model_id, crypto::digest_from(ByteView(ids).first(32), "model id"));
  TIE_TRY(identity.release_id, crypto::digest_from(ByteView(ids).subspan(32, 32), "release id"));
  TIE_TRY(identity.layout_id, crypto::digest_from(ByteView(ids).subspan(64), "layout id"));
  cache::EnsembleWarden warden(identity);
  TIE_CHECK_OK(warden.set_key(SecretBytes::copy_of(key)));
  return warden;
}

Result<json> seal(const json& request) {
  TIE_TRY(cache::EnsembleWarden warden, warden_of(request));
  std::vector<Bytes> blocks;
  for (const auto& block : request.at("blocks")) {
    TIE_TRY(Bytes bytes, from_hex(block.get<std::string>()));
    blocks.push_back(std::move(bytes));
  }
  cache::SegmentShape shape{.first_token = request.at("first_token"),
                            .block_count = static_cast<uint32_t>(blocks.size()),
                            .block_tokens = request.at("block_tokens"),
                            .block_bytes = blocks.at(0).size()};
  TIE_TRY(size_t size, cache::EnsembleWarden::sealed_segment_bytes(shape));
  Bytes segment(size);
  TIE_TRY(cache::SegmentReference reference,
          warden.seal_segment(shape, [&](uint32_t i) -> ByteView { return blocks[i]; }, segment));
  TIE_TRY(Bytes manifest, warden.seal_manifest({request.at("tokens").get<std::vector<int32_t>>(), {reference}}));
  TIE_TRY(crypto::Digest manifest_id, warden.manifest_id());
  TIE_TRY(crypto::Digest segment_id, warden.segment_id(reference));
  return json{{"segment", to_hex(segment)},
              {"manifest", to_hex(manifest)},
              {"manifest_id", to_hex(manifest_id)},
              {"segment_id", to_hex(segment_id)}};
}

Result<json> open(const json& request) {
  TIE_TRY(cache::EnsembleWarden warden, warden_of(request));
  TIE_TRY(Bytes sealed_manifest, bytes_of(request, "manifest"));
  TIE_TRY(Bytes segment, bytes_of(request, "segment"));
  TIE_TRY(cache::Manifest manifest, warden.open_manifest(sealed_manifest));
  const cache::SegmentReference& reference = manifest.segments.at(0);
  cache::SegmentShape shape{.first_token = reference.first_token,
                            .block_count = reference.block_count,
                            .block_tokens = request.at("block_tokens"),
                            .block_bytes = request.at("block_bytes")};
  std::vector<Bytes> blocks(shape.block_count, Bytes(shape.block_bytes));
  TIE_CHECK_OK(
      warden.open_segment(reference, shape, segment, [&](uint32_t i) -> std::span<uint8_t> { return blocks[i]; }));
  json out{{"tokens", manifest.tokens}, {"blocks", json::array()}};
  for (const Bytes& block : blocks) out["blocks"].push_back(to_hex(block));
  return out;
}

}  // namespace

int main() {
  json request = json::parse(std::cin);
  auto answer = request.at("op") == "seal" ? seal(request) : open(request);
  std::cout << (answer ? *answer : json{{"error", answer.error().message}}).dump() << "\n";
  return 0;
}
