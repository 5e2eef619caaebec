// Authenticated encryption with an explicit 12-byte nonce: AES-256-GCM is the product's one AEAD; the others exist for
// HPKE's vectors. The caller must never use a nonce twice under one key. An AeadKey keeps the expanded key schedule and
// belongs to one thread; it is zeroed with the object. A failed open gives no plaintext. Source: RFC 5116, NIST SP
// 800-38D. Cost: about 4.7 GB/s a core.
#pragma once
#include "base/secret_bytes.h"

struct evp_cipher_ctx_st;

namespace tie::crypto {

enum class AeadId : uint16_t { kAes128Gcm = 1, kAes256Gcm = 2, kChaCha20Poly1305 = 3 };  // IANA HPKE AEAD identifiers

constexpr size_t kAeadNonceBytes = 12;
constexpr size_t kAeadTagBytes = 16;

Result<size_t> aead_key_bytes(AeadId id);  // kUnsupportedFeature for an unknown id

class AeadKey {
 public:
  // kBadRequest unless key.size() is aead_key_bytes(id).
  static Result<AeadKey> create(AeadId id, ByteView key);
  AeadKey(AeadKey&& other) noexcept;
  AeadKey& operator=(AeadKey&& other) noexcept;
  AeadKey(const AeadKey&) = delete;
  ~AeadKey();

  // out.size() == plaintext.size() + kAeadTagBytes; out may start where plaintext starts (in place) and may not overlap
  // otherwise.
  Result<void> seal_into(ByteView nonce, ByteView aad, ByteView plaintext, std::span<uint8_t> out);
  // out.size() == sealed.size() - kAeadTagBytes. On a wrong tag: kCorrupt, and out is zeroed.
  Result<void> open_into(ByteView nonce, ByteView aad, ByteView sealed, std::span<uint8_t> out);
  Result<Bytes> seal(ByteView nonce, ByteView aad, ByteView plaintext);
  Result<Bytes> open(ByteView nonce, ByteView aad, ByteView sealed);

 private:
  AeadKey() = default;
  evp_cipher_ctx_st* seal_context_ = nullptr;
  evp_cipher_ctx_st* open_context_ = nullptr;
};

// AES-256-GCM in one call.
Result<Bytes> aead_seal(ByteView key, ByteView nonce, ByteView aad, ByteView plaintext);
Result<Bytes> aead_open(ByteView key, ByteView nonce, ByteView aad, ByteView sealed);

}  // namespace tie::crypto
