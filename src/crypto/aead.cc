#include "crypto/aead.h"

#include <openssl/evp.h>

#include <limits>

namespace tie::crypto {
namespace {

const EVP_CIPHER* cipher_of(AeadId id) {
  switch (id) {
    case AeadId::kAes128Gcm:
      return EVP_aes_128_gcm();
    case AeadId::kAes256Gcm:
      return EVP_aes_256_gcm();
    case AeadId::kChaCha20Poly1305:
      return EVP_chacha20_poly1305();
  }
  return nullptr;
}

constexpr size_t kMaxInput = std::numeric_limits<int>::max() / 2;  // libcrypto counts in int

Result<void> check_sizes(ByteView nonce, ByteView aad, size_t text, size_t out, size_t expected_out) {
  if (nonce.size() != kAeadNonceBytes) return fail(Code::kBadRequest, "an AEAD nonce has 12 bytes");
  if (aad.size() > kMaxInput || text > kMaxInput) return fail(Code::kTooLarge, "too many bytes for one AEAD message");
  tie_check(out == expected_out, "the AEAD output buffer has the right size");
  return {};
}

}  // namespace

Result<size_t> aead_key_bytes(AeadId id) {
  switch (id) {
    case AeadId::kAes128Gcm:
      return size_t{16};
    case AeadId::kAes256Gcm:
    case AeadId::kChaCha20Poly1305:
      return size_t{32};
  }
  return fail(Code::kUnsupportedFeature, "unknown AEAD");
}

Result<AeadKey> AeadKey::create(AeadId id, ByteView key) {
  TIE_TRY(size_t expected, aead_key_bytes(id));
  if (key.size() != expected) return fail(Code::kBadRequest, "an AEAD key has the wrong length");
  AeadKey out;
  out.seal_context_ = EVP_CIPHER_CTX_new();
  out.open_context_ = EVP_CIPHER_CTX_new();
  const EVP_CIPHER* cipher = cipher_of(id);
  bool ready = out.seal_context_ != nullptr && out.open_context_ != nullptr &&
               EVP_EncryptInit_ex(out.seal_context_, cipher, nullptr, key.data(), nullptr) == 1 &&
               EVP_DecryptInit_ex(out.open_context_, cipher, nullptr, key.data(), nullptr) == 1;
  tie_check(ready, "libcrypto has the AEAD");
  return out;
}

AeadKey::AeadKey(AeadKey&& other) noexcept
    : seal_context_(std::exchange(other.seal_context_, nullptr)),
      open_context_(std::exchange(other.open_context_, nullptr)) {}

AeadKey& AeadKey::operator=(AeadKey&& other) noexcept {
  std::swap(seal_context_, other.seal_context_);
  std::swap(open_context_, other.open_context_);
  return *this;
}

AeadKey::~AeadKey() {
  EVP_CIPHER_CTX_free(seal_context_);
  EVP_CIPHER_CTX_free(open_context_);
}

Result<void> AeadKey::seal_into(ByteView nonce, ByteView aad, ByteView plaintext, std::span<uint8_t> out) {
  TIE_CHECK_OK(check_sizes(nonce, aad, plaintext.size(), out.size(), plaintext.size() + kAeadTagBytes));
  int length = 0;
  uint8_t* tag = out.data() + plaintext.size();
  bool done = EVP_EncryptInit_ex(seal_context_, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
              (aad.empty() ||
               EVP_EncryptUpdate(seal_context_, nullptr, &length, aad.data(), static_cast<int>(aad.size())) == 1) &&
              (plaintext.empty() || EVP_EncryptUpdate(seal_context_, out.data(), &length, plaintext.data(),
                                                      static_cast<int>(plaintext.size())) == 1) &&
              EVP_EncryptFinal_ex(seal_context_, tag, &length) == 1 &&
              EVP_CIPHER_CTX_ctrl(seal_context_, EVP_CTRL_AEAD_GET_TAG, kAeadTagBytes, tag) == 1;
  if (!done) return fail(Code::kInternal, "sealing failed");
  return {};
}

Result<void> AeadKey::open_into(ByteView nonce, ByteView aad, ByteView sealed, std::span<uint8_t> out) {
  if (sealed.size() < kAeadTagBytes) return fail(Code::kCorrupt, "sealed bytes do not open");
  const size_t text = sealed.size() - kAeadTagBytes;
  TIE_CHECK_OK(check_sizes(nonce, aad, text, out.size(), text));
  int length = 0;
  uint8_t unused[kAeadTagBytes];
  Bytes tag(sealed.end() - kAeadTagBytes, sealed.end());
  bool done = EVP_DecryptInit_ex(open_context_, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
              (aad.empty() ||
               EVP_DecryptUpdate(open_context_, nullptr, &length, aad.data(), static_cast<int>(aad.size())) == 1) &&
              (text == 0 ||
               EVP_DecryptUpdate(open_context_, out.data(), &length, sealed.data(), static_cast<int>(text)) == 1) &&
              EVP_CIPHER_CTX_ctrl(open_context_, EVP_CTRL_AEAD_SET_TAG, kAeadTagBytes, tag.data()) == 1 &&
              EVP_DecryptFinal_ex(open_context_, unused, &length) == 1;
  if (!done) {
    secure_zero(out.data(), out.size());
    return fail(Code::kCorrupt, "sealed bytes do not open");
  }
  return {};
}

Result<Bytes> AeadKey::seal(ByteView nonce, ByteView aad, ByteView plaintext) {
  Bytes out(plaintext.size() + kAeadTagBytes);
  TIE_CHECK_OK(seal_into(nonce, aad, plaintext, out));
  return out;
}

Result<Bytes> AeadKey::open(ByteView nonce, ByteView aad, ByteView sealed) {
  if (sealed.size() < kAeadTagBytes) return fail(Code::kCorrupt, "sealed bytes do not open");
  Bytes out(sealed.size() - kAeadTagBytes);
  TIE_CHECK_OK(open_into(nonce, aad, sealed, out));
  return out;
}

Result<Bytes> aead_seal(ByteView key, ByteView nonce, ByteView aad, ByteView plaintext) {
  TIE_TRY(AeadKey aead, AeadKey::create(AeadId::kAes256Gcm, key));
  return aead.seal(nonce, aad, plaintext);
}

Result<Bytes> aead_open(ByteView key, ByteView nonce, ByteView aad, ByteView sealed) {
  TIE_TRY(AeadKey aead, AeadKey::create(AeadId::kAes256Gcm, key));
  return aead.open(nonce, aad, sealed);
}

}  // namespace tie::crypto
