#include "keys/attestation/verify.h"

#include <algorithm>

#include "attestation.pb.h"
#include "keys/attestation/claims.h"
#include "keys/attestation/evidence.h"
#include "keys/attestation/tpm_quote.h"

namespace tie::attestation {
namespace {

using Digests = std::vector<Digest>;

constexpr int kMaxModels = 64;

std::unexpected<Error> refuse(std::string sentence) {
  return fail(Code::kPermissionDenied, std::move(sentence));
}

// Keeps the first failure and tells of every check.
class Judge {
 public:
  explicit Judge(std::vector<Check>* checks) : checks_(checks) {}
  bool check(Result<void> outcome, std::string when_passed) {
    if (checks_ != nullptr)
      checks_->push_back({outcome.has_value(), outcome ? std::move(when_passed) : outcome.error().message});
    if (!outcome && !failure_) failure_ = std::move(outcome.error());
    return outcome.has_value();
  }
  // Takes the value of a step that later ones need.
  template <typename T>
  bool take(Result<T> outcome, T& value, std::string when_passed) {
    if (!outcome) return check(std::unexpected(std::move(outcome.error())), "");
    value = std::move(*outcome);
    return check({}, std::move(when_passed));
  }
  bool failed() const { return failure_.has_value(); }
  std::unexpected<Error> failure() { return std::unexpected(std::move(*failure_)); }

 private:
  std::vector<Check>* checks_;
  std::optional<Error> failure_;
};

Result<void> check_kind(const std::string& kind, const Policy& policy, const std::string& whose) {
  const auto& accepted = policy.accepted_kinds;
  if (std::find(accepted.begin(), accepted.end(), kind) != accepted.end()) return {};
  const bool printable =
      kind.size() <= 32 && std::all_of(kind.begin(), kind.end(), [](char c) { return c > ' ' && c < 127; });
  return refuse(whose + " evidence is of kind '" + (printable ? kind : "?") + "', which the policy does not accept");
}

Result<void> check_challenge(const Evidence& evidence, ByteView expected, const std::string& whose) {
  if (equal_constant_time(evidence.challenge, expected)) return {};
  return refuse(whose + " evidence answers another challenge");
}

// True when the claims inside may be read.
bool judge_evidence(Judge& judge, bool present, const v1::Evidence& proto, const Policy& policy, ByteView challenge,
                    const std::string& whose) {
  if (!present) return judge.check(refuse("the bundle lacks " + whose + " evidence"), "");
  const Evidence evidence = evidence_from_proto(proto);
  bool sound = judge.check(check_kind(evidence.kind, policy, whose),
                           whose + " evidence is of the accepted kind " + evidence.kind);
  sound &= judge.check(check_evidence(evidence, whose.c_str()), whose + " evidence is signed over its claims");
  if (evidence.kind == kKindTpm) {
    if (auto quote = decode_tpm_quote(evidence.quote))
      sound &=
          judge.check(check_quote_policy(*quote, policy, whose), whose + " evidence is signed by a pinned TPM key");
  }
  sound &= judge.check(check_challenge(evidence, challenge, whose), whose + " evidence answers this challenge");
  return sound;
}

Result<Digests> digests_of(const google::protobuf::RepeatedPtrField<std::string>& list, const char* what) {
  if (static_cast<size_t>(list.size()) > kMaxDigestsInClaims)
    return fail(Code::kCorrupt, std::string("the bundle names too many ") + what);
  Digests out;
  for (const std::string& item : list) {
    TIE_TRY(const Digest digest, crypto::digest_from(as_bytes(item), what));
    out.push_back(digest);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<KemClaims> kem_claims_of(const v1::KemClaims& in) {
  KemClaims out{in.suite(), to_bytes(in.kem_public_key()), to_bytes(in.binding_public_key()), in.expires_unix_ms(), {},
                {}};
  TIE_TRY(out.model_ids, digests_of(in.model_ids(), "model ids"));
  TIE_TRY(out.prompt_digests, digests_of(in.prompt_digests(), "prompt digests"));
  return out;
}

// The request key's claims may say only what one of the two evidences says.
Result<void> check_agreement(const KemClaims& kem, const WorkloadClaims& workload,
                             const KeyServiceClaims& key_service) {
  if (workload.binding_public_key != key_service.binding_public_key)
    return refuse(
        "the two evidences name different binding keys: the request key's answers would go to another workload");
  if (kem.binding_public_key != workload.binding_public_key)
    return refuse("the bundle names a binding key that no evidence covers");
  if (kem.kem_public_key != key_service.kem_public_key || kem.suite != key_service.suite)
    return refuse("the bundle names a request key that the key service's evidence does not cover");
  if (kem.expires_unix_ms != key_service.expires_unix_ms)
    return refuse("the bundle names another expiry than the key service's evidence");
  if (kem.model_ids != workload.model_ids)
    return refuse("the bundle names models that the workload's evidence does not cover");
  if (kem.prompt_digests != workload.prompt_digests)
    return refuse("the bundle names system prompts that the workload's evidence does not cover");
  return {};
}

std::string short_id(const Digest& digest) {
  return to_hex(digest).substr(0, 12);
}

bool all_in(const Digests& what, const Digests& allowed) {
  return std::all_of(what.begin(), what.end(),
                     [&](const Digest& d) { return std::find(allowed.begin(), allowed.end(), d) != allowed.end(); });
}

Result<void> check_release(const Digest& release, const Policy& policy) {
  if (all_in({release}, policy.release_ids)) return {};
  return refuse("the node runs release " + short_id(release) + ", which the policy does not pin");
}

Result<void> check_pinned(const Digests& named, const std::optional<Digests>& pinned, const char* what) {
  if (!pinned || all_in(named, *pinned)) return {};
  return refuse(std::string("the node uses a ") + what + " that the policy does not pin");
}

Result<std::vector<ServedModel>> models_of(const v1::AttestationBundle& bundle, const Digests& covered) {
  if (bundle.models_size() > kMaxModels) return fail(Code::kCorrupt, "the bundle names too many models");
  std::vector<ServedModel> out;
  for (const v1::ModelFacts& facts : bundle.models()) {
    ServedModel model{facts.name(), {}, facts.context_tokens(), facts.architecture()};
    TIE_TRY(model.model_id, crypto::digest_from(as_bytes(facts.model_id()), "a model id"));
    if (!all_in({model.model_id}, covered))
      return refuse("the bundle offers a model that the workload's evidence does not cover");
    out.push_back(std::move(model));
  }
  return out;
}

}  // namespace

std::string VerifiedNode::describe() const {
  if (!attested) return "unattested (software evidence)";
  return workload_kind == key_service_kind ? "attested (" + workload_kind + ")"
                                           : "attested (" + workload_kind + ", " + key_service_kind + ")";
}

namespace {

struct Statements {
  WorkloadClaims workload;
  KeyServiceClaims key_service;
  KemClaims kem;
};

// Everything that can be judged is; false when the claims could not even be read.
bool judge_bundle(Judge& judge, const v1::AttestationBundle& bundle, const Policy& policy, const VerifyOptions& options,
                  Statements& said) {
  const Digest epoch = epoch_challenge(bundle.publication_epoch());
  const ByteView challenge = options.challenge ? ByteView(*options.challenge) : ByteView(epoch);
  judge_evidence(judge, bundle.has_workload(), bundle.workload(), policy, challenge, "the workload's");
  judge_evidence(judge, bundle.has_key_service(), bundle.key_service(), policy, challenge, "the key service's");
  if (!judge.take(decode_workload_claims(as_bytes(bundle.workload().claims())), said.workload,
                  "the workload's claims are well formed") ||
      !judge.take(decode_key_service_claims(as_bytes(bundle.key_service().claims())), said.key_service,
                  "the key service's claims are well formed") ||
      !judge.take(kem_claims_of(bundle.kem()), said.kem, "the request key's claims are well formed"))
    return false;
  judge.check(check_agreement(said.kem, said.workload, said.key_service),
              "both evidences cover this request key and name the same binding key");
  const bool named = equal_constant_time(as_bytes(bundle.key_id()), key_id(said.kem));
  judge.check(named ? Result<void>() : refuse("the bundle's key id is not the digest of its claims"),
              "the key id is the digest of the claims");
  if (bundle.workload().kind() == kKindTpm) {
    if (auto quote = decode_tpm_quote(as_bytes(bundle.workload().quote())))
      judge.check(check_measured(*quote, said.workload),
                  "the TPM measured this release, these models and these prompts");
  }
  judge.check(check_release(said.workload.release_id, policy),
              "the policy pins release " + short_id(said.workload.release_id));
  judge.check(check_pinned(said.workload.model_ids, policy.model_ids, "model"),
              policy.model_ids ? "the policy pins every model" : "the policy leaves the models open");
  judge.check(
      check_pinned(said.workload.prompt_digests, policy.prompt_digests, "system prompt"),
      policy.prompt_digests ? "the policy pins every system prompt" : "the policy leaves the system prompts open");
  const bool alive = said.kem.expires_unix_ms > options.now_unix_ms;
  judge.check(alive ? Result<void>() : fail(Code::kKeyUnknownOrExpired, "the node's request key has expired"),
              "the request key has not expired");
  return true;
}

Result<VerifiedNode> node_of(const v1::AttestationBundle& bundle, const Statements& said) {
  VerifiedNode out;
  TIE_TRY(out.key.suite.kem, crypto::kem_id_from(said.kem.suite));
  TIE_TRY(const crypto::KemSizes sizes, crypto::kem_sizes(out.key.suite.kem));
  if (said.kem.kem_public_key.size() != sizes.public_key)
    return fail(Code::kCorrupt, "the node's request key has the wrong length");
  out.key.key_id = to_bytes(bundle.key_id());
  out.key.public_key = said.kem.kem_public_key;
  out.expires_unix_ms = said.kem.expires_unix_ms;
  out.release_id = said.workload.release_id;
  out.prompt_digests = said.kem.prompt_digests;
  TIE_TRY(out.models, models_of(bundle, said.kem.model_ids));
  out.workload_kind = bundle.workload().kind();
  out.key_service_kind = bundle.key_service().kind();
  out.attested = out.workload_kind != kKindSoftware && out.key_service_kind != kKindSoftware;
  out.token_required = bundle.token_required();
  out.token_challenge = to_bytes(bundle.token_challenge());
  return out;
}

}  // namespace

Result<VerifiedNode> verify_bundle(const v1::AttestationBundle& bundle, const Policy& policy,
                                   const VerifyOptions& options, std::vector<Check>* checks) {
  Judge judge(checks);
  Statements said;
  VerifiedNode out;
  if (judge_bundle(judge, bundle, policy, options, said))
    judge.take(node_of(bundle, said), out, "the key and the models are usable");
  if (judge.failed()) return judge.failure();
  return out;
}

}  // namespace tie::attestation
