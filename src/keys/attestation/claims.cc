#include "keys/attestation/claims.h"

#include <algorithm>
#include <cstring>

#include "crypto/wire_labels.h"

namespace tie::attestation {
namespace {

constexpr size_t kMaxPublicKeyBytes = 4096;

// A claims encoding is a row of fields, each a u32 big-endian length and that many bytes; the first field is the label
// of its kind.
class Writer {
 public:
  explicit Writer(std::string_view label) { field(as_bytes(label)); }
  Writer& field(ByteView bytes) {
    append_u32_be(out_, static_cast<uint32_t>(bytes.size()));
    append(out_, bytes);
    return *this;
  }
  Writer& u32(uint32_t value) {
    append_u32_be(out_, 4);
    append_u32_be(out_, value);
    return *this;
  }
  Writer& u64(uint64_t value) {
    append_u32_be(out_, 8);
    append_u64_be(out_, value);
    return *this;
  }
  Writer& digests(std::vector<Digest> list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    append_u32_be(out_, static_cast<uint32_t>(list.size() * sizeof(Digest)));
    for (const Digest& digest : list) append(out_, ByteView(digest));
    return *this;
  }
  Bytes take() { return std::move(out_); }

 private:
  Bytes out_;
};

class Reader {
 public:
  Reader(ByteView bytes, std::string_view label) : left_(bytes) {
    if (bytes.size() > kMaxClaimsBytes || as_text(field(label.size())) != label) good_ = false;
  }
  // The next field; empty, and the reader is bad, when it is longer than `most` or runs over the end.
  ByteView field(size_t most) {
    if (!good_ || left_.size() < 4) return bad();
    const size_t length = load_u32_be(left_.data());
    if (length > most || length > left_.size() - 4) return bad();
    ByteView out = left_.subspan(4, length);
    left_ = left_.subspan(4 + length);
    return out;
  }
  Bytes bytes(size_t most) {
    ByteView view = field(most);
    return Bytes(view.begin(), view.end());
  }
  uint32_t u32() {
    ByteView view = field(4);
    if (view.size() != 4) return bad(), 0;
    return load_u32_be(view.data());
  }
  uint64_t u64() {
    ByteView view = field(8);
    if (view.size() != 8) return bad(), 0;
    return load_u64_be(view.data());
  }
  Digest digest() {
    Digest out{};
    ByteView view = field(out.size());
    if (view.size() != out.size()) return bad(), out;
    std::memcpy(out.data(), view.data(), out.size());
    return out;
  }
  std::vector<Digest> digests() {
    ByteView view = field(kMaxDigestsInClaims * sizeof(Digest));
    if (view.size() % sizeof(Digest) != 0) return bad(), std::vector<Digest>();
    std::vector<Digest> out(view.size() / sizeof(Digest));
    for (size_t i = 0; i < out.size(); ++i) {
      std::memcpy(out[i].data(), view.data() + i * sizeof(Digest), sizeof(Digest));
      if (i != 0 && out[i] <= out[i - 1]) return bad(), std::vector<Digest>();
    }
    return out;
  }
  template <typename Claims>
  Result<Claims> finish(Claims claims, const char* what) const {
    if (!good_ || !left_.empty())
      return fail(Code::kCorrupt, std::string(what) + " claims are not in their canonical form");
    return claims;
  }

 private:
  ByteView bad() {
    good_ = false;
    return {};
  }
  ByteView left_;
  bool good_ = true;
};

}  // namespace

Bytes encode(const KemClaims& claims) {
  return Writer(crypto::kKemClaimsLabel)
      .u32(claims.suite)
      .field(claims.kem_public_key)
      .field(claims.binding_public_key)
      .u64(claims.expires_unix_ms)
      .digests(claims.model_ids)
      .digests(claims.prompt_digests)
      .take();
}

Bytes encode(const WorkloadClaims& claims) {
  return Writer(crypto::kWorkloadClaimsLabel)
      .field(claims.binding_public_key)
      .field(claims.release_id)
      .digests(claims.model_ids)
      .digests(claims.prompt_digests)
      .take();
}

Bytes encode(const KeyServiceClaims& claims) {
  return Writer(crypto::kKeyServiceClaimsLabel)
      .u32(claims.suite)
      .field(claims.kem_public_key)
      .field(claims.binding_public_key)
      .u64(claims.expires_unix_ms)
      .field(as_bytes(claims.key_uuid))
      .take();
}

Result<KemClaims> decode_kem_claims(ByteView bytes) {
  Reader reader(bytes, crypto::kKemClaimsLabel);
  KemClaims out;
  out.suite = reader.u32();
  out.kem_public_key = reader.bytes(kMaxPublicKeyBytes);
  out.binding_public_key = reader.bytes(kMaxPublicKeyBytes);
  out.expires_unix_ms = reader.u64();
  out.model_ids = reader.digests();
  out.prompt_digests = reader.digests();
  return reader.finish(std::move(out), "request key");
}

Result<WorkloadClaims> decode_workload_claims(ByteView bytes) {
  Reader reader(bytes, crypto::kWorkloadClaimsLabel);
  WorkloadClaims out;
  out.binding_public_key = reader.bytes(kMaxPublicKeyBytes);
  out.release_id = reader.digest();
  out.model_ids = reader.digests();
  out.prompt_digests = reader.digests();
  return reader.finish(std::move(out), "workload");
}

Result<KeyServiceClaims> decode_key_service_claims(ByteView bytes) {
  Reader reader(bytes, crypto::kKeyServiceClaimsLabel);
  KeyServiceClaims out;
  out.suite = reader.u32();
  out.kem_public_key = reader.bytes(kMaxPublicKeyBytes);
  out.binding_public_key = reader.bytes(kMaxPublicKeyBytes);
  out.expires_unix_ms = reader.u64();
  out.key_uuid = to_string(reader.field(kMaxKeyUuidBytes));
  return reader.finish(std::move(out), "key service");
}

Digest key_id(const KemClaims& claims) {
  return crypto::sha256(encode(claims));
}

}  // namespace tie::attestation
