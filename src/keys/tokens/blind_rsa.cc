#include "keys/tokens/blind_rsa.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rsa.h>

#include <algorithm>

#include "base/random.h"

namespace tie::tokens {
namespace {

constexpr size_t kMaxModulusBytes = 512;
// SubjectPublicKeyInfo up to the modulus: id-RSASSA-PSS with SHA-384, MGF1-SHA-384 and a salt of 48 bytes, then a
// BIT STRING with an RSAPublicKey of 2,048 bits.
constexpr char kSpkiBegin[] =
    "30820152303d06092a864886f70d01010a3030a00d300b0609608648016503040202a11a301806092a864886f70d010108300b06096086"
    "48016503040202a2030201300382010f003082010a0282010100";
constexpr char kSpkiEnd[] = "0203010001";

struct ContextFree {
  void operator()(BN_CTX* context) const { BN_CTX_free(context); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(OSSL_PARAM_BLD* builder) const { OSSL_PARAM_BLD_free(builder); }
  void operator()(OSSL_PARAM* params) const { OSSL_PARAM_free(params); }
};
template <typename T>
using Owned = std::unique_ptr<T, ContextFree>;

std::unexpected<Error> library_failed() {
  return fail(Code::kInternal, "the RSA arithmetic failed");
}

Bignum number(ByteView bytes) {
  return Bignum(BN_bin2bn(bytes.data(), static_cast<int>(bytes.size()), nullptr));
}

Bytes to_fixed(const BIGNUM* value, size_t size) {
  Bytes out(size);
  tie_check(BN_bn2binpad(value, out.data(), static_cast<int>(size)) == static_cast<int>(size),
            "a number below the modulus has its size");
  return out;
}

Result<Pkey> key_from(OSSL_PARAM_BLD* builder, int selection) {
  Owned<OSSL_PARAM> params(OSSL_PARAM_BLD_to_param(builder));
  Owned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new_from_name(nullptr, "RSA", nullptr));
  EVP_PKEY* key = nullptr;
  if (!params || !context || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, selection, params.get()) != 1)
    return fail(Code::kBadRequest, "these numbers are no RSA key");
  return Pkey(key);
}

Result<Bytes> key_number(const EVP_PKEY* key, const char* name) {
  BIGNUM* value = nullptr;
  if (EVP_PKEY_get_bn_param(key, name, &value) != 1) return library_failed();
  Bignum owned(value);
  Bytes out(static_cast<size_t>(BN_num_bytes(value)));
  BN_bn2bin(value, out.data());
  return out;
}

}  // namespace

void PkeyFree::operator()(evp_pkey_st* key) const {
  EVP_PKEY_free(key);
}
void BignumFree::operator()(bignum_st* value) const {
  BN_clear_free(value);
}

BlindRsaPublicKey::BlindRsaPublicKey(Pkey key, Bignum modulus, Bignum exponent)
    : key_(std::move(key)),
      modulus_(std::move(modulus)),
      exponent_(std::move(exponent)),
      modulus_bytes_(static_cast<size_t>(BN_num_bytes(modulus_.get()))) {}
BlindRsaPublicKey::BlindRsaPublicKey(BlindRsaPublicKey&&) noexcept = default;
BlindRsaPublicKey& BlindRsaPublicKey::operator=(BlindRsaPublicKey&&) noexcept = default;
BlindRsaPublicKey::~BlindRsaPublicKey() = default;

Result<BlindRsaPublicKey> BlindRsaPublicKey::from_numbers(ByteView modulus, ByteView exponent) {
  const bool fits = modulus.size() >= kModulusBytes && modulus.size() <= kMaxModulusBytes && (modulus[0] & 0x80) != 0 &&
                    (modulus.back() & 1) == 1 && !exponent.empty() && exponent.size() <= 4 &&
                    (exponent.back() & 1) == 1;
  if (!fits) return fail(Code::kBadRequest, "not a public RSA key of a size that is used here");
  Bignum n = number(modulus), e = number(exponent);
  Owned<OSSL_PARAM_BLD> builder(OSSL_PARAM_BLD_new());
  if (!n || !e || !builder || OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, n.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, e.get()) != 1)
    return library_failed();
  TIE_TRY(Pkey key, key_from(builder.get(), EVP_PKEY_PUBLIC_KEY));
  return BlindRsaPublicKey(std::move(key), std::move(n), std::move(e));
}

Result<BlindRsaPublicKey> BlindRsaPublicKey::from_spki(ByteView spki) {
  static const Bytes begin = *from_hex(kSpkiBegin), end = *from_hex(kSpkiEnd);
  const bool formed = spki.size() == kSpkiBytes && std::equal(begin.begin(), begin.end(), spki.begin()) &&
                      std::equal(end.rbegin(), end.rend(), spki.rbegin());
  if (!formed) return fail(Code::kBadRequest, "not a public key for tokens of type 2 (RSASSA-PSS, 2,048 bits)");
  return from_numbers(spki.subspan(begin.size(), kModulusBytes), Bytes{1, 0, 1});
}

Bytes BlindRsaPublicKey::spki() const {
  tie_check(modulus_bytes_ == kModulusBytes && BN_is_word(exponent_.get(), 65537), "a token key has its one form");
  Bytes out = *from_hex(kSpkiBegin);
  append(out, to_fixed(modulus_.get(), kModulusBytes));
  append(out, *from_hex(kSpkiEnd));
  return out;
}

crypto::Digest BlindRsaPublicKey::key_id() const {
  return crypto::sha256(spki());
}

Result<void> BlindRsaPublicKey::verify(ByteView message, ByteView signature) const {
  Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  EVP_PKEY_CTX* options = nullptr;
  if (!context || EVP_DigestVerifyInit(context.get(), &options, EVP_sha384(), nullptr, key_.get()) != 1 ||
      EVP_PKEY_CTX_set_rsa_padding(options, RSA_PKCS1_PSS_PADDING) != 1 ||
      EVP_PKEY_CTX_set_rsa_mgf1_md(options, EVP_sha384()) != 1 ||
      EVP_PKEY_CTX_set_rsa_pss_saltlen(options, static_cast<int>(kSaltBytes)) != 1)
    return library_failed();
  if (EVP_DigestVerify(context.get(), signature.data(), signature.size(), message.data(), message.size()) != 1)
    return fail(Code::kUnauthenticated, "the signature does not match");
  return {};
}

Result<Blinded> BlindRsaPublicKey::blind(ByteView message) const {
  Bytes salt(kSaltBytes);
  random_bytes(salt);
  Bignum drawn(BN_secure_new());
  if (!drawn || BN_priv_rand_range(drawn.get(), modulus_.get()) != 1) return library_failed();
  SecretBytes blind(modulus_bytes_);
  BN_bn2binpad(drawn.get(), blind.data(), static_cast<int>(blind.size()));
  return blind_with(message, salt, blind.view());
}

Result<Blinded> BlindRsaPublicKey::blind_with(ByteView message, ByteView salt, ByteView blind) const {
  Owned<BN_CTX> work(BN_CTX_secure_new());
  Bignum encoded = number(emsa_pss_encode(message, salt, static_cast<size_t>(BN_num_bits(modulus_.get()))));
  Bignum r = number(blind), common(BN_new()), masked(BN_new()), inverse(BN_secure_new());
  if (!work || !encoded || !r || !common || !masked || !inverse) return library_failed();
  BN_set_flags(r.get(), BN_FLG_CONSTTIME);
  if (BN_gcd(common.get(), encoded.get(), modulus_.get(), work.get()) != 1) return library_failed();
  if (!BN_is_one(common.get()) || BN_is_zero(r.get()) ||
      BN_mod_inverse(inverse.get(), r.get(), modulus_.get(), work.get()) == nullptr)
    return fail(Code::kBadRequest, "this blind has no inverse");
  if (BN_mod_exp(masked.get(), r.get(), exponent_.get(), modulus_.get(), work.get()) != 1 ||
      BN_mod_mul(masked.get(), encoded.get(), masked.get(), modulus_.get(), work.get()) != 1)
    return library_failed();
  Blinded out{to_fixed(masked.get(), modulus_bytes_), SecretBytes(modulus_bytes_)};
  BN_bn2binpad(inverse.get(), out.inverse.data(), static_cast<int>(modulus_bytes_));
  return out;
}

Result<Bytes> BlindRsaPublicKey::finalize(ByteView message, ByteView blind_signature, ByteView inverse) const {
  if (blind_signature.size() != modulus_bytes_)
    return fail(Code::kCorrupt, "the issuer's answer does not have the size of a signature");
  Owned<BN_CTX> work(BN_CTX_secure_new());
  Bignum signed_value = number(blind_signature), factor = number(inverse), product(BN_new());
  if (!work || !signed_value || !factor || !product ||
      BN_mod_mul(product.get(), signed_value.get(), factor.get(), modulus_.get(), work.get()) != 1)
    return library_failed();
  Bytes signature = to_fixed(product.get(), modulus_bytes_);
  if (!verify(message, signature)) return fail(Code::kCorrupt, "the issuer's answer is not a signature of its key");
  return signature;
}

Result<BlindRsaPrivateKey> BlindRsaPrivateKey::from_key(Pkey key) {
  TIE_TRY(Bytes n, key_number(key.get(), OSSL_PKEY_PARAM_RSA_N));
  TIE_TRY(Bytes e, key_number(key.get(), OSSL_PKEY_PARAM_RSA_E));
  TIE_TRY(BlindRsaPublicKey half, BlindRsaPublicKey::from_numbers(n, e));
  return BlindRsaPrivateKey(std::move(key), std::move(half));
}

Result<BlindRsaPrivateKey> BlindRsaPrivateKey::generate() {
  Pkey key(EVP_RSA_gen(kModulusBytes * 8));
  if (!key) return library_failed();
  return from_key(std::move(key));
}

Result<BlindRsaPrivateKey> BlindRsaPrivateKey::from_numbers(ByteView n, ByteView e, ByteView d, ByteView p,
                                                            ByteView q) {
  Owned<OSSL_PARAM_BLD> builder(OSSL_PARAM_BLD_new());
  if (!builder) return library_failed();
  std::vector<Bignum> kept;
  const std::pair<const char*, ByteView> parts[] = {{OSSL_PKEY_PARAM_RSA_N, n},
                                                    {OSSL_PKEY_PARAM_RSA_E, e},
                                                    {OSSL_PKEY_PARAM_RSA_D, d},
                                                    {OSSL_PKEY_PARAM_RSA_FACTOR1, p},
                                                    {OSSL_PKEY_PARAM_RSA_FACTOR2, q}};
  for (const auto& [name, bytes] : parts) {
    kept.push_back(number(bytes));
    if (!kept.back() || OSSL_PARAM_BLD_push_BN(builder.get(), name, kept.back().get()) != 1) return library_failed();
  }
  TIE_TRY(Pkey key, key_from(builder.get(), EVP_PKEY_KEYPAIR));
  return from_key(std::move(key));
}

Result<Bytes> BlindRsaPrivateKey::sign(ByteView blinded_message) const {
  const size_t size = public_key_.modulus_bytes();
  TIE_TRY(Bytes n, key_number(key_.get(), OSSL_PKEY_PARAM_RSA_N));
  if (blinded_message.size() != size ||
      !std::lexicographical_compare(blinded_message.begin(), blinded_message.end(), n.begin(), n.end()))
    return fail(Code::kBadRequest, "the blinded message is no number below the modulus");
  Owned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new(key_.get(), nullptr));
  Bytes out(size), again(size);
  size_t length = out.size();
  if (!context || EVP_PKEY_sign_init(context.get()) != 1 ||
      EVP_PKEY_CTX_set_rsa_padding(context.get(), RSA_NO_PADDING) != 1 ||
      EVP_PKEY_sign(context.get(), out.data(), &length, blinded_message.data(), blinded_message.size()) != 1 ||
      length != size)
    return library_failed();
  Owned<EVP_PKEY_CTX> check(EVP_PKEY_CTX_new(key_.get(), nullptr));
  length = again.size();
  if (!check || EVP_PKEY_verify_recover_init(check.get()) != 1 ||
      EVP_PKEY_CTX_set_rsa_padding(check.get(), RSA_NO_PADDING) != 1 ||
      EVP_PKEY_verify_recover(check.get(), again.data(), &length, out.data(), out.size()) != 1 ||
      !equal_constant_time(again, blinded_message))
    return library_failed();
  return out;
}

}  // namespace tie::tokens
