#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "keys/tokens/blind_rsa.h"

namespace tie::tokens {
namespace {

constexpr size_t kHashBytes = 48;
using Hash = std::array<uint8_t, kHashBytes>;

Hash sha384(ByteView bytes) {
  Hash out;
  bool done = EVP_Digest(bytes.data(), bytes.size(), out.data(), nullptr, EVP_sha384(), nullptr) == 1;
  tie_check(done, "SHA-384 is available");
  return out;
}

// XORs MGF1(seed) onto `target`.
void mask(const Hash& seed, std::span<uint8_t> target) {
  Bytes input(seed.begin(), seed.end());
  input.resize(seed.size() + 4);
  for (uint32_t block = 0; block * kHashBytes < target.size(); ++block) {
    for (int i = 0; i < 4; ++i) input[seed.size() + size_t(i)] = static_cast<uint8_t>(block >> (24 - 8 * i));
    const Hash piece = sha384(input);
    const size_t begin = block * kHashBytes, end = std::min(begin + kHashBytes, target.size());
    for (size_t i = begin; i < end; ++i) target[i] ^= piece[i - begin];
  }
}

}  // namespace

Bytes emsa_pss_encode(ByteView message, ByteView salt, size_t modulus_bits) {
  const size_t bits = modulus_bits - 1, size = (bits + 7) / 8;
  tie_check(size >= kHashBytes + salt.size() + 2, "the modulus has room for hash and salt");
  Bytes inner(8, 0);
  append(inner, ByteView(sha384(message)));
  append(inner, salt);
  const Hash hash = sha384(inner);

  Bytes out(size - kHashBytes - 1, 0);  // DB = zeros || 1 || salt
  out[out.size() - salt.size() - 1] = 1;
  std::copy(salt.begin(), salt.end(), out.end() - static_cast<ptrdiff_t>(salt.size()));
  mask(hash, out);
  out[0] &= static_cast<uint8_t>(0xff >> (8 * size - bits));
  append(out, ByteView(hash));
  out.push_back(0xbc);
  return out;
}

}  // namespace tie::tokens
