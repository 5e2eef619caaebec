// Hostile bundles, claims and policies: never a crash, and claims that decode encode to the same bytes.
#include "attestation.pb.h"
#include "keys/attestation/claims.h"
#include "keys/attestation/verify.h"

using namespace tie;

template <typename Claims>
static void same(ByteView input, const Result<Claims>& claims) {
  if (claims) tie_check(equal_constant_time(attestation::encode(*claims), input), "claims have one encoding");
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteView input(data, size);
  same(input, attestation::decode_kem_claims(input));
  same(input, attestation::decode_workload_claims(input));
  same(input, attestation::decode_key_service_claims(input));
  (void)attestation::parse_policy(as_text(input));
  v1::AttestationBundle bundle;
  if (!bundle.ParseFromArray(data, static_cast<int>(size))) return 0;
  const attestation::Policy policy{{crypto::Digest{}}, {"software"}, std::nullopt, std::nullopt};
  std::vector<attestation::Check> checks;
  auto node = attestation::verify_bundle(bundle, policy, {std::nullopt, 0}, &checks);
  if (!node) tie_check(!checks.empty() && !node.error().message.empty(), "a refusal says why");
  return 0;
}
