#include "crypto/ed25519_pem.h"

#include <openssl/bio.h>
#include <openssl/pem.h>

#include <memory>

#include "crypto/ed25519.h"
#include "crypto/raw_keys.h"

namespace tie::crypto {
namespace {

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;

Bio reader(std::string_view pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

ByteView written(const Bio& bio) {
  char* data = nullptr;
  long size = BIO_get_mem_data(bio.get(), &data);
  return {reinterpret_cast<const uint8_t*>(data), size < 0 ? 0 : static_cast<size_t>(size)};
}

// No key file of ours has a passphrase; asking a terminal for one would hang a daemon.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

bool is_ed25519(const Pkey& key) {
  return key && EVP_PKEY_get_id(key.get()) == EVP_PKEY_ED25519;
}

}  // namespace

std::string ed25519_public_to_pem(ByteView public_key) {
  Pkey key = raw_public(EVP_PKEY_ED25519, public_key);
  Bio out(BIO_new(BIO_s_mem()));
  tie_check(key && out && PEM_write_bio_PUBKEY(out.get(), key.get()) == 1, "a public key can be written");
  return to_string(written(out));
}

SecretBytes ed25519_seed_to_pem(ByteView seed) {
  Pkey key = raw_private(EVP_PKEY_ED25519, seed);
  Bio out(BIO_new(BIO_s_secmem()));
  tie_check(key && out && PEM_write_bio_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1,
            "a private key can be written");
  return SecretBytes::copy_of(written(out));
}

Result<Bytes> ed25519_public_from_pem(std::string_view pem) {
  Bio in = reader(pem);
  Pkey key(in ? PEM_read_bio_PUBKEY(in.get(), nullptr, no_passphrase, nullptr) : nullptr);
  Bytes out(kEd25519PublicBytes);
  size_t size = out.size();
  if (!is_ed25519(key) || EVP_PKEY_get_raw_public_key(key.get(), out.data(), &size) != 1)
    return fail(Code::kCorrupt, "this is no Ed25519 public key in PEM form");
  return out;
}

Result<SecretBytes> ed25519_seed_from_pem(std::string_view pem) {
  Bio in = reader(pem);
  Pkey key(in ? PEM_read_bio_PrivateKey(in.get(), nullptr, no_passphrase, nullptr) : nullptr);
  SecretBytes out(kEd25519SeedBytes);
  size_t size = out.size();
  if (!is_ed25519(key) || EVP_PKEY_get_raw_private_key(key.get(), out.data(), &size) != 1)
    return fail(Code::kCorrupt, "this is no Ed25519 private key in PEM form without a passphrase");
  return out;
}

}  // namespace tie::crypto
