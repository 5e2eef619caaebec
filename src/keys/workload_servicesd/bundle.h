// A request key's bundle: its claims, both evidences, and the models behind it, as clients receive it.
// Pure functions over what they are given; any thread. Source: proto/attestation.proto.
#pragma once
#include "attestation.pb.h"
#include "keys/attestation/claims.h"
#include "keys/attestation/evidence.h"
#include "keys/workload_servicesd/node_facts.h"

namespace tie::wsd {

// What the workload states: its binding key and what runs here.
attestation::WorkloadClaims workload_claims(ByteView binding_public_key, const NodeFacts& facts);

v1::AttestationBundle make_bundle(const attestation::KemClaims& claims, const NodeFacts& facts,
                                  const attestation::Evidence& workload, const attestation::Evidence& key_service,
                                  uint64_t publication_epoch);

}  // namespace tie::wsd
