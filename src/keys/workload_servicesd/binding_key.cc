#include "keys/workload_servicesd/binding_key.h"

#include "base/random.h"
#include "crypto/hpke_receiver.h"

namespace tie::wsd {

Result<std::shared_ptr<const BindingKey>> BindingKey::generate() {
  TIE_TRY(const crypto::KemSizes sizes, crypto::kem_sizes(crypto::kDecapSealSuite.kem));
  TIE_TRY(SecretMemory memory, SecretMemory::create(sizes.private_key));
  random_bytes(memory.span());
  TIE_TRY(crypto::KemKeyPair pair, crypto::kem_from_private(crypto::kDecapSealSuite.kem, memory.view()));
  return std::shared_ptr<const BindingKey>(new BindingKey(std::move(memory), std::move(pair.public_key)));
}

Result<SecretBytes> BindingKey::open(crypto::KemId request_kem, std::string_view key_uuid, ByteView enc,
                                     const SealedSecret& answer) const {
  TIE_TRY(crypto::ReceiverContext context,
          crypto::ReceiverContext::from_private_key(crypto::kDecapSealSuite, private_key_.view(), answer.binding_enc,
                                                    crypto::decap_seal_info()));
  return context.open(crypto::decap_seal_aad(request_kem, key_uuid, enc), answer.sealed);
}

}  // namespace tie::wsd
