#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "keys/tokens/blind_rsa.h"

namespace tie::tokens {
namespace {

struct BioFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Bio = std::unique_ptr<BIO, BioFree>;

}  // namespace

Result<BlindRsaPrivateKey> BlindRsaPrivateKey::from_pem(std::string_view pem) {
  if (pem.size() > kMaxPemBytes) return fail(Code::kTooLarge, "this is no key file");
  Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  // A callback that gives no passphrase: nothing may ask at a terminal.
  auto no_passphrase = [](char*, int, int, void*) { return -1; };
  Pkey key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr) : nullptr);
  if (!key || EVP_PKEY_is_a(key.get(), "RSA") != 1) return fail(Code::kBadRequest, "not a private RSA key in PEM");
  return from_key(std::move(key));
}

SecretBytes BlindRsaPrivateKey::pem() const {
  Bio bio(BIO_new(BIO_s_secmem()));
  const bool written =
      bio && PEM_write_bio_PKCS8PrivateKey(bio.get(), key_.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1;
  tie_check(written, "a private key can be written to memory");
  const char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return SecretBytes::copy_of(as_bytes(std::string_view(text, static_cast<size_t>(size))));
}

}  // namespace tie::tokens
