#include "attestation.pb.h"
#include "client/session/limits.h"
#include "client/session/node_verifier.h"
#include "keys/attestation/claims.h"
#include "keys/attestation/evidence.h"

namespace tie::client {

std::string VerifiedNode::summary() const {
  return assurance + "; release=" + release_id_hex.substr(0, 12) + "; key=" + key_id_hex.substr(0, 12);
}

const ServedModel* VerifiedNode::find_model(const std::string& name) const {
  for (const ServedModel& model : models) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

Result<VerifiedNode> facts_of(const v1::AttestationBundle& bundle) {
  TIE_TRY(crypto::KemId kem, crypto::kem_id_from(bundle.kem().suite()));
  TIE_TRY(crypto::KemSizes sizes, crypto::kem_sizes(kem));
  if (bundle.kem().kem_public_key().size() != sizes.public_key)
    return fail(Code::kCorrupt, "the bundle's request key has the wrong size");
  if (bundle.key_id().size() != crypto::kKeyIdBytes)
    return fail(Code::kCorrupt, "the bundle's key id has the wrong size");
  if (size_t(bundle.models_size()) > kMaxModels) return fail(Code::kCorrupt, "the bundle names too many models");
  VerifiedNode node;
  node.key = {.suite = {.kem = kem},
              .key_id = to_bytes(bundle.key_id()),
              .public_key = to_bytes(bundle.kem().kem_public_key())};
  node.expires_unix_ms = bundle.kem().expires_unix_ms();
  node.token_required = bundle.token_required();
  node.token_challenge = to_bytes(bundle.token_challenge());
  bool software = bundle.workload().kind() == attestation::kKindSoftware ||
                  bundle.key_service().kind() == attestation::kKindSoftware;
  node.assurance = software ? "unattested" : bundle.workload().kind();
  if (auto claims = attestation::decode_workload_claims(as_bytes(bundle.workload().claims())))
    node.release_id_hex = to_hex(claims->release_id);
  node.key_id_hex = to_hex(node.key.key_id);
  node.evidence_kinds = {bundle.workload().kind(), bundle.key_service().kind()};
  for (const v1::ModelFacts& model : bundle.models()) {
    node.models.push_back(
        {model.name(), to_hex(as_bytes(model.model_id())), model.context_tokens(), model.architecture()});
  }
  return node;
}

}  // namespace tie::client
