// A binding key: the X-Wing key to which key_protectiond seals what it decapsulates. Drawn here, used here, dies here;
// one for each request key. Threads: any, concurrently (immutable). Source: ARCHITECTURE.md, "Keys of the node".
#pragma once
#include <memory>
#include <string>

#include "crypto/decap_seal.h"
#include "keys/workload_servicesd/secret_memory.h"

namespace tie::wsd {

struct SealedSecret {
  Bytes binding_enc, sealed;
};

class BindingKey {
 public:
  static Result<std::shared_ptr<const BindingKey>> generate();
  const Bytes& public_key() const { return public_key_; }
  // The shared secret of `enc` under the request key `key_uuid`. kCorrupt when the answer is for another key or another
  // enc.
  Result<SecretBytes> open(crypto::KemId request_kem, std::string_view key_uuid, ByteView enc,
                           const SealedSecret& answer) const;

 private:
  BindingKey(SecretMemory expanded, Bytes public_key)
      : expanded_(std::move(expanded)), public_key_(std::move(public_key)) {}
  SecretMemory expanded_;  // the private key, see kem_expand
  Bytes public_key_;
};

}  // namespace tie::wsd
