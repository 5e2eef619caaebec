#include "keys/workload_servicesd/bundle.h"

namespace tie::wsd {

attestation::WorkloadClaims workload_claims(ByteView binding_public_key, const NodeFacts& facts) {
  return {Bytes(binding_public_key.begin(), binding_public_key.end()), facts.release_id, facts.model_ids(),
          facts.prompt_digests};
}

v1::AttestationBundle make_bundle(const attestation::KemClaims& claims, const NodeFacts& facts,
                                  const attestation::Evidence& workload, const attestation::Evidence& key_service,
                                  uint64_t publication_epoch) {
  v1::AttestationBundle out;
  v1::KemClaims& kem = *out.mutable_kem();
  kem.set_suite(claims.suite);
  kem.set_kem_public_key(to_string(claims.kem_public_key));
  kem.set_binding_public_key(to_string(claims.binding_public_key));
  kem.set_expires_unix_ms(claims.expires_unix_ms);
  for (const crypto::Digest& id : claims.model_ids) kem.add_model_ids(to_string(id));
  for (const crypto::Digest& digest : claims.prompt_digests) kem.add_prompt_digests(to_string(digest));
  out.set_key_id(to_string(attestation::key_id(claims)));
  attestation::to_proto(workload, *out.mutable_workload());
  attestation::to_proto(key_service, *out.mutable_key_service());
  for (const Model& model : facts.models) {
    v1::ModelFacts& row = *out.add_models();
    row.set_name(model.name);
    row.set_model_id(to_string(model.model_id));
    row.set_context_tokens(model.context_tokens);
    row.set_architecture(model.architecture);
  }
  out.set_publication_epoch(publication_epoch);
  out.set_token_required(!facts.token_challenge.empty());
  out.set_token_challenge(to_string(facts.token_challenge));
  return out;
}

}  // namespace tie::wsd
