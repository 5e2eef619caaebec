// What tie-model-owner hands out of each model, written beside that model's socket, so that whoever gives request
// processes their tokenizer and chat template gives them those of the version that is served: a new version on disk may
// have been refused. A small text of digests, DIR/MODEL/served; deploy/tie-stage-assets reads it, too. A copy in a
// folder without sockets is for workload_servicesd, whose claims name what is served. Called by the owner (write) and
// the other two (read). Pure; no state.
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

// In the folder of the models' sockets (`--model-sockets`); makes the model's folder where it is missing.
Result<void> write_served(const std::string& folder, const std::string& model, const ServedVersion& version);

// When an owner starts: what an earlier one handed out has ended with it.
void forget_served(const std::string& folder, const std::string& model);

// Nothing when the owner has not loaded a version yet, or says nothing that can be read.
std::optional<ServedVersion> read_served(const std::string& folder, const std::string& model);

// The copy, FOLDER/MODEL (`--served`), which every user may read: the evidence names the same.
Result<void> publish_served(const std::string& folder, const std::string& model, const ServedVersion& version);
void withdraw_served(const std::string& folder, const std::string& model);
std::optional<ServedVersion> read_published(const std::string& folder, const std::string& model);

}  // namespace tie::owner
