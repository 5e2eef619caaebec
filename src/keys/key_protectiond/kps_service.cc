#include "keys/key_protectiond/kps_service.h"

#include "keys/attestation/claims.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::kps {
namespace {

void fill(const KeyFacts& facts, v1::KEMKey& out) {
  out.set_key_uuid(facts.uuid);
  out.set_suite(static_cast<uint16_t>(facts.kem));
  out.set_public_key(to_string(facts.public_key));
  out.set_binding_public_key(to_string(facts.binding_public_key));
  out.set_expires_unix_ms(facts.expires_unix_ms);
}

grpc::Status ended(grpc::ServerContext* context, const Result<void>& outcome) {
  return outcome ? grpc::Status::OK : rpc::to_status(outcome.error(), context);
}

}  // namespace

Result<void> KpsService::add_evidence(const KeyFacts& facts, const std::string& challenge, v1::KEMKey& out) const {
  if (challenge.empty()) return {};
  const attestation::KeyServiceClaims claims{facts.public_key, static_cast<uint16_t>(facts.kem),
                                             facts.binding_public_key, facts.expires_unix_ms, facts.uuid};
  TIE_TRY(const attestation::Evidence evidence, signer_.state(attestation::encode(claims), as_bytes(challenge)));
  attestation::to_proto(evidence, *out.mutable_evidence());
  return {};
}

grpc::Status KpsService::GenerateKEMKeypair(grpc::ServerContext* context, const v1::GenerateKEMKeypairRequest* request,
                                            v1::KEMKey* reply) {
  return ended(context, [&]() -> Result<void> {
    TIE_TRY(const KeyFacts facts,
            store_.generate(request->suite(), as_bytes(request->binding_public_key()), request->lifetime_ms()));
    fill(facts, *reply);
    auto stated = add_evidence(facts, request->challenge(), *reply);
    if (!stated) (void)store_.destroy(facts.uuid);  // the caller never learns of a key it asked for wrongly
    return stated;
  }());
}

grpc::Status KpsService::DecapAndSeal(grpc::ServerContext* context, const v1::DecapAndSealRequest* request,
                                      v1::DecapAndSealReply* reply) {
  return ended(context, [&]() -> Result<void> {
    TIE_TRY(const SealedSecret sealed,
            store_.decap_and_seal(request->key_uuid(), as_bytes(request->encapsulated_key())));
    reply->set_binding_enc(to_string(sealed.binding_enc));
    reply->set_sealed_secret(to_string(sealed.sealed));
    return {};
  }());
}

grpc::Status KpsService::EnumerateKEMKeys(grpc::ServerContext* context, const v1::EnumerateKEMKeysRequest* request,
                                          v1::EnumerateKEMKeysReply* reply) {
  return ended(context, [&]() -> Result<void> {
    TIE_TRY(const KeyStore::Page page, store_.enumerate(request->page_size(), request->page_token()));
    for (const KeyFacts& facts : page.keys) fill(facts, *reply->add_keys());
    reply->set_next_page_token(page.next_page_token);
    return {};
  }());
}

grpc::Status KpsService::GetKEMKey(grpc::ServerContext* context, const v1::GetKEMKeyRequest* request,
                                   v1::KEMKey* reply) {
  return ended(context, [&]() -> Result<void> {
    TIE_TRY(const KeyFacts facts, store_.get(request->key_uuid()));
    fill(facts, *reply);
    return add_evidence(facts, request->challenge(), *reply);
  }());
}

grpc::Status KpsService::DestroyKEMKey(grpc::ServerContext* context, const v1::DestroyKEMKeyRequest* request,
                                       v1::DestroyKEMKeyReply*) {
  return ended(context, store_.destroy(request->key_uuid()));
}

grpc::Status KpsService::Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*, v1::HeartbeatReply* reply) {
  reply->set_boot_id(store_.boot_id());
  reply->set_key_count(static_cast<uint32_t>(store_.count()));
  return grpc::Status::OK;
}

}  // namespace tie::kps
