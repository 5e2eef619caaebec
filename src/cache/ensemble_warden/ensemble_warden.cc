#include "cache/ensemble_warden/ensemble_warden.h"

#include <cstring>

#include "base/random.h"
#include "crypto/aead.h"
#include "crypto/hkdf.h"

namespace tie::cache {
namespace {

constexpr std::string_view kDomain = "tie kv cache v1 ";
constexpr std::string_view kSegmentMagic = "TIEKVSG1";
constexpr std::string_view kManifestMagic = "TIEKVMF1";
constexpr size_t kSegmentHeaderBytes = 8 + kSaltBytes + 4 + 4 + 4 + 8;
constexpr size_t kManifestHeaderBytes = 8 + kSaltBytes;
constexpr size_t kReferenceBytes = kSaltBytes + 4 + 4 + crypto::kSha256Bytes;

std::array<uint8_t, crypto::kAeadNonceBytes> nonce_of(uint64_t index) {
  std::array<uint8_t, crypto::kAeadNonceBytes> nonce{};
  for (int i = 0; i < 8; ++i) nonce[11 - i] = static_cast<uint8_t>(index >> (8 * i));
  return nonce;
}

Bytes segment_header(const SegmentShape& shape, ByteView salt) {
  Bytes header;
  append(header, kSegmentMagic);
  append(header, salt);
  append_u32_be(header, shape.first_token);
  append_u32_be(header, shape.block_count);
  append_u32_be(header, shape.block_tokens);
  append_u64_be(header, shape.block_bytes);
  return header;
}

// AAD of a seal: identity first, then the object's own clear header, then (segments) the block's index.
Bytes aad_prefix(const CacheIdentity& identity, ByteView header) {
  Bytes aad;
  append(aad, kDomain);
  append(aad, ByteView(identity.model_id));
  append(aad, ByteView(identity.release_id));
  append(aad, ByteView(identity.layout_id));
  append(aad, header);
  return aad;
}

class BlockAad {
 public:
  BlockAad(const CacheIdentity& identity, ByteView header)
      : bytes_(aad_prefix(identity, header)), prefix_(bytes_.size()) {}
  ByteView of(uint32_t index) {
    bytes_.resize(prefix_);
    append_u32_be(bytes_, index);
    return bytes_;
  }

 private:
  Bytes bytes_;
  size_t prefix_;
};

Result<void> check_segments(const Manifest& manifest) {
  if (manifest.tokens.size() > kMaxCachedTokens)
    return fail(Code::kOutOfRange, "more cached tokens than a manifest holds");
  if (manifest.segments.size() > kMaxSegments) return fail(Code::kOutOfRange, "more segments than a manifest holds");
  return {};
}

}  // namespace

template <typename T>
Result<T> EnsembleWarden::spend(Result<T> failure) {
  state_ = State::kSpent;
  turn_key_.wipe();
  return failure;
}

Result<void> EnsembleWarden::require_key() const {
  if (state_ == State::kKeyed) return {};
  return fail(Code::kFailedPrecondition,
              state_ == State::kEmpty ? "no turn key was given" : "the warden is spent after a failure");
}

Result<void> EnsembleWarden::set_key(SecretBytes turn_key) {
  if (state_ != State::kEmpty) return fail(Code::kFailedPrecondition, "a turn key is given once");
  if (turn_key.size() != kTurnKeyBytes) return spend<void>(fail(Code::kBadRequest, "a turn key is 32 bytes long"));
  turn_key_ = std::move(turn_key);
  state_ = State::kKeyed;
  return {};
}

Result<SecretBytes> EnsembleWarden::derive(std::string_view purpose, ByteView salt, size_t length) const {
  return crypto::hkdf({}, turn_key_.view(), {as_bytes(kDomain), as_bytes(purpose), salt}, length);
}

Result<crypto::Digest> EnsembleWarden::manifest_id() {
  TIE_CHECK_OK(require_key());
  TIE_TRY(SecretBytes id, derive("entry id", {}));
  return crypto::digest_from(id.view(), "entry id");
}

Result<crypto::Digest> EnsembleWarden::segment_id(const SegmentReference& segment) {
  TIE_CHECK_OK(require_key());
  TIE_TRY(SecretBytes id, derive("segment id", segment.salt));
  return crypto::digest_from(id.view(), "segment id");
}

Result<size_t> EnsembleWarden::sealed_segment_bytes(const SegmentShape& shape) {
  if (shape.block_count == 0 || shape.block_count > kMaxBlocksPerSegment)
    return fail(Code::kOutOfRange, "a segment has 1 to 65536 blocks");
  if (shape.block_bytes == 0 || shape.block_bytes > kMaxBlockBytes)
    return fail(Code::kOutOfRange, "a block has 1 byte to 64 MiB");
  if (shape.block_tokens == 0 || shape.first_token % shape.block_tokens != 0)
    return fail(Code::kOutOfRange, "a segment begins at a whole block");
  return kSegmentHeaderBytes + shape.block_count * (static_cast<size_t>(shape.block_bytes) + crypto::kAeadTagBytes);
}

crypto::Digest EnsembleWarden::segment_digest(const SegmentShape& shape, ByteView sealed) {
  size_t stride = static_cast<size_t>(shape.block_bytes) + crypto::kAeadTagBytes;
  tie_check(sealed.size() == kSegmentHeaderBytes + shape.block_count * stride,
            "a sealed segment has the size of its shape");
  crypto::Sha256 hash;
  hash.update(sealed.first(kSegmentHeaderBytes));
  for (uint32_t i = 0; i < shape.block_count; ++i)
    hash.update(sealed.subspan(kSegmentHeaderBytes + (i + 1) * stride - crypto::kAeadTagBytes, crypto::kAeadTagBytes));
  return hash.finish();
}

Result<SegmentReference> EnsembleWarden::seal_segment(const SegmentShape& shape,
                                                      const std::function<ByteView(uint32_t)>& block,
                                                      std::span<uint8_t> out) {
  TIE_CHECK_OK(require_key());
  auto size = sealed_segment_bytes(shape);
  if (!size) return spend<SegmentReference>(std::unexpected(size.error()));
  if (out.size() != *size)
    return spend<SegmentReference>(fail(Code::kOutOfRange, "the place for a sealed segment has the wrong size"));
  SegmentReference reference{.first_token = shape.first_token, .block_count = shape.block_count};
  random_bytes(reference.salt);
  TIE_TRY(SecretBytes key_bytes, derive("segment", reference.salt));
  TIE_TRY(crypto::AeadKey key, crypto::AeadKey::create(crypto::AeadId::kAes256Gcm, key_bytes.view()));
  Bytes header = segment_header(shape, reference.salt);
  std::memcpy(out.data(), header.data(), header.size());
  BlockAad aad(identity_, header);
  size_t stride = static_cast<size_t>(shape.block_bytes) + crypto::kAeadTagBytes;
  for (uint32_t i = 0; i < shape.block_count; ++i) {
    ByteView plain = block(i);
    if (plain.size() != shape.block_bytes)
      return spend<SegmentReference>(fail(Code::kOutOfRange, "a block has the wrong size"));
    auto sealed = key.seal_into(nonce_of(i), aad.of(i), plain, out.subspan(kSegmentHeaderBytes + i * stride, stride));
    if (!sealed) return spend<SegmentReference>(std::unexpected(sealed.error()));
  }
  reference.digest = segment_digest(shape, out);
  return reference;
}

Result<void> EnsembleWarden::open_segment(const SegmentReference& segment, const SegmentShape& shape, ByteView sealed,
                                          const std::function<std::span<uint8_t>(uint32_t)>& place) {
  TIE_CHECK_OK(require_key());
  auto size = sealed_segment_bytes(shape);
  Bytes header = segment_header(shape, segment.salt);
  if (!size || sealed.size() != *size || segment.first_token != shape.first_token ||
      segment.block_count != shape.block_count || std::memcmp(sealed.data(), header.data(), header.size()) != 0)
    return spend<void>(fail(Code::kCorrupt, "a segment does not have the shape its manifest names"));
  if (segment_digest(shape, sealed) != segment.digest)
    return spend<void>(fail(Code::kCorrupt, "a segment is not the one its manifest names"));
  TIE_TRY(SecretBytes key_bytes, derive("segment", segment.salt));
  TIE_TRY(crypto::AeadKey key, crypto::AeadKey::create(crypto::AeadId::kAes256Gcm, key_bytes.view()));
  BlockAad aad(identity_, header);
  size_t stride = static_cast<size_t>(shape.block_bytes) + crypto::kAeadTagBytes;
  for (uint32_t i = 0; i < shape.block_count; ++i) {
    std::span<uint8_t> out = place(i);
    bool opened = out.size() == shape.block_bytes &&
                  key.open_into(nonce_of(i), aad.of(i), sealed.subspan(kSegmentHeaderBytes + i * stride, stride), out)
                      .has_value();
    if (opened) continue;
    for (uint32_t j = 0; j <= i; ++j) secure_zero(place(j).data(), place(j).size());
    return spend<void>(fail(Code::kCorrupt, "a block does not open under this key and identity"));
  }
  return {};
}

Result<Bytes> EnsembleWarden::seal_manifest(const Manifest& manifest) {
  TIE_CHECK_OK(require_key());
  if (auto fits = check_segments(manifest); !fits) return spend<Bytes>(std::unexpected(fits.error()));
  SecretBytes plain(8 + manifest.tokens.size() * 4 + manifest.segments.size() * kReferenceBytes);
  Bytes scratch;
  append_u32_be(scratch, static_cast<uint32_t>(manifest.tokens.size()));
  append_u32_be(scratch, static_cast<uint32_t>(manifest.segments.size()));
  for (int32_t token : manifest.tokens) append_u32_be(scratch, static_cast<uint32_t>(token));
  for (const SegmentReference& segment : manifest.segments) {
    append(scratch, ByteView(segment.salt));
    append_u32_be(scratch, segment.first_token);
    append_u32_be(scratch, segment.block_count);
    append(scratch, ByteView(segment.digest));
  }
  std::memcpy(plain.data(), scratch.data(), scratch.size());
  secure_zero(scratch);

  Bytes out;
  append(out, kManifestMagic);
  Bytes salt(kSaltBytes);
  random_bytes(salt);
  append(out, ByteView(salt));
  TIE_TRY(SecretBytes key, derive("manifest", salt));
  TIE_TRY(Bytes sealed, crypto::aead_seal(key.view(), nonce_of(0), aad_prefix(identity_, out), plain.view()));
  append(out, ByteView(sealed));
  return out;
}

Result<Manifest> EnsembleWarden::open_manifest(ByteView sealed) {
  TIE_CHECK_OK(require_key());
  if (sealed.size() < kManifestHeaderBytes + crypto::kAeadTagBytes || as_text(sealed.first(8)) != kManifestMagic)
    return spend<Manifest>(fail(Code::kCorrupt, "not a manifest"));
  ByteView header = sealed.first(kManifestHeaderBytes);
  TIE_TRY(SecretBytes key, derive("manifest", header.subspan(8)));
  auto opened =
      crypto::aead_open(key.view(), nonce_of(0), aad_prefix(identity_, header), sealed.subspan(kManifestHeaderBytes));
  if (!opened) return spend<Manifest>(fail(Code::kCorrupt, "the manifest does not open under this key and identity"));
  Bytes plain = std::move(*opened);
  // Authenticated bytes: whoever holds the turn key wrote them. Still checked, since that may be a faulty release.
  uint64_t tokens = plain.size() >= 8 ? load_u32_be(plain.data()) : 0,
           segments = plain.size() >= 8 ? load_u32_be(plain.data() + 4) : 0;
  if (plain.size() < 8 || tokens > kMaxCachedTokens || segments > kMaxSegments ||
      plain.size() != 8 + tokens * 4 + segments * kReferenceBytes) {
    secure_zero(plain);
    return spend<Manifest>(fail(Code::kCorrupt, "the manifest's counts do not fit its size"));
  }
  Manifest manifest;
  manifest.tokens.reserve(tokens);  // growing would leave copies of a user's text behind
  const uint8_t* p = plain.data() + 8;
  for (uint64_t i = 0; i < tokens; ++i, p += 4) manifest.tokens.push_back(static_cast<int32_t>(load_u32_be(p)));
  for (uint64_t i = 0; i < segments; ++i, p += kReferenceBytes) {
    SegmentReference segment;
    std::memcpy(segment.salt.data(), p, kSaltBytes);
    segment.first_token = load_u32_be(p + kSaltBytes);
    segment.block_count = load_u32_be(p + kSaltBytes + 4);
    std::memcpy(segment.digest.data(), p + kSaltBytes + 8, crypto::kSha256Bytes);
    manifest.segments.push_back(segment);
  }
  secure_zero(plain);
  return manifest;
}

}  // namespace tie::cache
