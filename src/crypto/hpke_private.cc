#include "crypto/hpke_receiver.h"

// In a file of its own: a program that only resumes from a shared secret then needs no KEM and no Rust library.
namespace tie::crypto {

Result<ReceiverContext> ReceiverContext::from_private_key(const HpkeSuite& suite, ByteView private_key, ByteView enc,
                                                          ByteView info) {
  TIE_TRY(const SecretBytes shared, kem_decapsulate(suite.kem, private_key, enc));
  return from_shared_secret(suite, shared.view(), info);
}

}  // namespace tie::crypto
