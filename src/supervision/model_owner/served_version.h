// What tie-model-owner hands out of each model, for those who must not take what lies on disk for it, since a new
// version may have been refused: whoever gives request processes their tokenizer and chat template (the launcher,
// deploy/tie-stage-assets), and workload_servicesd, whose claims name the model. A small text of digests, FOLDER/MODEL
// (`--served`), which every user may read: the evidence names the same. Called by the owner (write) and the others
// (read). Pure; no state.
#pragma once
#include <optional>
#include <string>

#include "base/result.h"
#include "crypto/sha256.h"

namespace tie::owner {

struct ServedVersion {
  crypto::Digest model_id{}, tokenizer{}, chat_template{};  // the template's: of the empty string when there is none
  bool operator==(const ServedVersion&) const = default;
};

Result<void> write_served(const std::string& folder, const std::string& model, const ServedVersion& version);

// When an owner starts: what an earlier one handed out has ended with it.
void forget_served(const std::string& folder, const std::string& model);

// Nothing when the owner has not loaded a version yet, or says nothing that can be read.
std::optional<ServedVersion> read_served(const std::string& folder, const std::string& model);

}  // namespace tie::owner
