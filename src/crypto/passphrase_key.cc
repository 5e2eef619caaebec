#include "crypto/passphrase_key.h"

#include <openssl/evp.h>

namespace tie::crypto {
namespace {
constexpr uint64_t kMaxMemoryBytes = 1ull << 30;
constexpr uint32_t kMaxLog2N = 24, kMaxP = 16;
}  // namespace

Result<SecretBytes> key_from_passphrase(ByteView passphrase, ByteView salt, const PassphraseCost& cost, size_t length) {
  bool sane = cost.log2_n >= 1 && cost.log2_n <= kMaxLog2N && cost.r >= 1 && cost.p >= 1 && cost.p <= kMaxP;
  uint64_t memory = sane ? (128ull * cost.r) << cost.log2_n : 0;
  if (!sane || memory > kMaxMemoryBytes || length == 0)
    return fail(Code::kOutOfRange, "the cost of the passphrase's key is outside what is accepted");
  SecretBytes out(length);
  uint64_t with_blocks = memory + 128ull * cost.r * (cost.p + 4) + (1u << 20);
  if (EVP_PBE_scrypt(reinterpret_cast<const char*>(passphrase.data()), passphrase.size(), salt.data(), salt.size(),
                     1ull << cost.log2_n, cost.r, cost.p, with_blocks, out.data(), out.size()) != 1)
    return fail(Code::kInternal, "scrypt failed: is there enough memory?");
  return out;
}

}  // namespace tie::crypto
