// The client's policy: which releases and which kinds of evidence it accepts. Parsed from policy.toml, where an unknown
// key is an error. There is no "accept anything": an empty list accepts nothing. Pure functions; any thread. Source:
// ARCHITECTURE.md, "Keys of the node".
//
//   release_ids = ["<64 hex digits>", …]        # of the builds you trust (`tie policy` prints your own build's)
//   accepted_kinds = ["software"]               # "software" is unattested and says so wherever it is shown
//   model_ids = ["<64 hex digits>", …]          # optional; when present, a node that serves any other model is refused
//   prompt_digests = ["<64 hex digits>", …]     # optional; likewise for system prompts
//   tpm_keys = ["<64 hex digits>", …]           # for evidence of kind "tpm": the attestation keys of your TPMs
//   tpm_pcrs = ["0:<64 hex digits>", …]         # optional; values that quoted PCRs must have, by index
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "crypto/sha256.h"

namespace tie::attestation {

constexpr size_t kMaxPolicyBytes = 256 << 10;

struct Policy {
  std::vector<crypto::Digest> release_ids;
  std::vector<std::string> accepted_kinds;
  std::optional<std::vector<crypto::Digest>> model_ids, prompt_digests;
  std::vector<crypto::Digest> tpm_keys;
  std::vector<std::pair<uint8_t, crypto::Digest>> tpm_pcrs;
};

// kBadRequest, naming the line or key at fault.
Result<Policy> parse_policy(std::string_view toml);
Result<Policy> load_policy(const std::string& path);  // also kNotFound, kIo
std::string render_policy(const Policy& policy);

}  // namespace tie::attestation
