// Stand-ins for tests: a key service in this process, whose keys, boot id and reachability the test controls. Tests
// only.
#pragma once
#include "base/clock.h"
#include "keys/attestation/claims.h"
#include "keys/key_protectiond/key_store.h"
#include "keys/workload_servicesd/kps_client.h"
#include "keys/workload_servicesd/node_facts.h"

namespace tie::wsd {

class FakeKeyService final : public KeyService {
 public:
  Result<MadeKey> generate(crypto::KemId kem, ByteView binding_public_key, int64_t lifetime_ms,
                           ByteView challenge) override {
    if (!reachable) return unreachable();
    TIE_TRY(const kps::KeyFacts facts,
            store->generate(static_cast<uint16_t>(kem), binding_public_key, static_cast<uint64_t>(lifetime_ms)));
    ++generated;
    TIE_TRY(attestation::Evidence stated, evidence(facts.uuid, challenge));
    return MadeKey{facts.uuid, facts.public_key, facts.expires_unix_ms, std::move(stated)};
  }
  Result<SealedSecret> decap_and_seal(const std::string& uuid, ByteView enc) override {
    ++decapsulated;
    if (!reachable) return unreachable();
    TIE_TRY(kps::SealedSecret sealed, store->decap_and_seal(uuid, enc));
    return SealedSecret{std::move(sealed.binding_enc), std::move(sealed.sealed)};
  }
  Result<attestation::Evidence> evidence(const std::string& uuid, ByteView challenge) override {
    if (!reachable) return unreachable();
    TIE_TRY(const kps::KeyFacts facts, store->get(uuid));
    return signer.state(
        attestation::encode(attestation::KeyServiceClaims{facts.public_key, static_cast<uint16_t>(facts.kem),
                                                          facts.binding_public_key, facts.expires_unix_ms, facts.uuid}),
        challenge);
  }
  Result<std::vector<std::string>> enumerate() override {
    if (!reachable) return unreachable();
    TIE_TRY(const kps::KeyStore::Page page, store->enumerate(0, ""));
    std::vector<std::string> out;
    for (const kps::KeyFacts& facts : page.keys) out.push_back(facts.uuid);
    return out;
  }
  Result<void> destroy(const std::string& uuid) override {
    ++destroyed;
    return store->destroy(uuid);
  }
  Result<std::string> heartbeat() override {
    ++heartbeats;
    if (!reachable) return unreachable();
    return store->boot_id();
  }
  bool link_changed() override { return std::exchange(changed, false); }
  void restart() { store = std::make_unique<kps::KeyStore>(); }

  std::unique_ptr<kps::KeyStore> store = std::make_unique<kps::KeyStore>();
  attestation::SoftwareSigner signer;
  bool reachable = true, changed = false;
  int generated = 0, decapsulated = 0, destroyed = 0, heartbeats = 0;

 private:
  static std::unexpected<Error> unreachable() { return fail(Code::kNotReady, "unreachable"); }
};

inline crypto::Digest filled(uint8_t value) {
  crypto::Digest out;
  out.fill(value);
  return out;
}

inline NodeFacts some_facts() {
  return {filled(1), {{"model", filled(2), 2048, "llama"}}, {}};
}

}  // namespace tie::wsd
