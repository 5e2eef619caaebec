#include "keys/workload_servicesd/binding_key.h"

#include "base/random.h"
#include "crypto/hpke_receiver.h"

namespace tie::wsd {

Result<std::shared_ptr<const BindingKey>> BindingKey::generate() {
  constexpr crypto::KemId kKem = crypto::kDecapSealSuite.kem;
  TIE_TRY(crypto::KemKeyPair pair, crypto::kem_generate(kKem));
  TIE_TRY(const size_t bytes, crypto::kem_expanded_bytes(kKem));
  TIE_TRY(SecretMemory memory, SecretMemory::create(bytes));
  TIE_CHECK_OK(crypto::kem_expand(kKem, pair.private_key.view(), memory.span()));
  return std::shared_ptr<const BindingKey>(new BindingKey(std::move(memory), std::move(pair.public_key)));
}

Result<SecretBytes> BindingKey::open(crypto::KemId request_kem, std::string_view key_uuid, ByteView enc,
                                     const SealedSecret& answer) const {
  TIE_TRY(const SecretBytes shared,
          crypto::kem_decapsulate_expanded(crypto::kDecapSealSuite.kem, expanded_.view(), answer.binding_enc));
  TIE_TRY(crypto::ReceiverContext context, crypto::ReceiverContext::from_shared_secret(
                                               crypto::kDecapSealSuite, shared.view(), crypto::decap_seal_info()));
  return context.open(crypto::decap_seal_aad(request_kem, key_uuid, enc), answer.sealed);
}

}  // namespace tie::wsd
