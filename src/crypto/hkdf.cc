#include "crypto/hkdf.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

namespace tie::crypto {
namespace {

constexpr size_t kHashBytes = 32;

void hmac_sha256(ByteView key, ByteView message, uint8_t* out) {
  static constexpr uint8_t kNothing = 0;  // libcrypto wants a pointer even for no key
  unsigned length = 0;
  const uint8_t* key_data = key.empty() ? &kNothing : key.data();
  const uint8_t* said =
      HMAC(EVP_sha256(), key_data, static_cast<int>(key.size()), message.data(), message.size(), out, &length);
  tie_check(said != nullptr && length == kHashBytes, "libcrypto has HMAC-SHA256");
}

// The concatenation, in memory that is zeroed.
SecretBytes joined(ByteView first, std::initializer_list<ByteView> parts, size_t extra) {
  size_t total = first.size() + extra;
  for (ByteView part : parts) total += part.size();
  SecretBytes out(total);
  uint8_t* at = std::copy(first.begin(), first.end(), out.data());
  for (ByteView part : parts) at = std::copy(part.begin(), part.end(), at);
  return out;
}

}  // namespace

SecretBytes hkdf_extract(ByteView salt, std::initializer_list<ByteView> ikm) {
  SecretBytes prk(kHashBytes);
  const SecretBytes input = joined({}, ikm, 0);
  hmac_sha256(salt, input.view(),
              prk.data());  // HMAC pads a short or empty key with zero bytes: the RFC's default salt
  return prk;
}

Result<SecretBytes> hkdf_expand(ByteView prk, std::initializer_list<ByteView> info, size_t length) {
  if (length > kHkdfMaxBytes) return fail(Code::kOutOfRange, "HKDF gives at most 8160 bytes");
  if (prk.size() < kHashBytes) return fail(Code::kOutOfRange, "HKDF expands a key of at least 32 bytes");
  SecretBytes out(length);
  // One buffer holds T(i-1) || info || counter; the first round leaves T(0) out.
  static constexpr uint8_t kRoom[kHashBytes] = {};
  SecretBytes input = joined(ByteView(kRoom), info, 1);
  uint8_t* counter = input.data() + input.size() - 1;
  for (size_t done = 0; done < length; done += kHashBytes) {
    ++*counter;
    uint8_t block[kHashBytes];
    hmac_sha256(prk, done == 0 ? input.view().subspan(kHashBytes) : input.view(), block);
    std::memcpy(out.data() + done, block, std::min(kHashBytes, length - done));
    std::memcpy(input.data(), block, kHashBytes);
    secure_zero(block, sizeof block);
  }
  return out;
}

Result<SecretBytes> hkdf(ByteView salt, ByteView ikm, std::initializer_list<ByteView> info, size_t length) {
  const SecretBytes prk = hkdf_extract(salt, {ikm});
  return hkdf_expand(prk.view(), info, length);
}

}  // namespace tie::crypto
