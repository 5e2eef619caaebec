// What runs on this node, as the claims will state it: the release that the launcher measured, the models and the
// system prompts. Of a model whose files on disk the owner has not taken (a refused version; one that it still loads)
// the version that it hands out is stated, as the owner says it (model_owner/served_version.h). Called at start and
// when assets change. Cost: one pass over the weights (about 0.6 ms a MB) of each model of which owner and record do
// not say the id. Source: docs/wire-format.md, "Identities".
#pragma once
#include <string>
#include <vector>

#include "crypto/sha256.h"

namespace tie::wsd {

struct Model {
  std::string name;
  crypto::Digest model_id{};
  uint32_t context_tokens = 0;  // from model.toml; 0: not stated
  std::string architecture;
  bool operator==(const Model&) const = default;
};

struct NodeFacts {
  crypto::Digest release_id{};
  std::vector<Model> models;  // sorted by name
  std::vector<crypto::Digest> prompt_digests;
  Bytes token_challenge;  // of a node with one-time tokens on; else empty
  std::vector<crypto::Digest> model_ids() const;
  bool operator==(const NodeFacts&) const = default;
};

// The digest of the release manifest, a file in sha256sum's format. kCorrupt when a line is not of that form,
// kNotFound, kTooLarge.
Result<crypto::Digest> release_id_of(const std::string& manifest_path);

// Every folder ASSETS/models/NAME with weights, every file ASSETS/prompts/ID.json. kNotFound when there is no model at
// all. `served`: the folder where the owner says what it hands out; empty: nobody says, the files on disk are stated.
Result<NodeFacts> read_node_facts(const std::string& manifest_path, const std::string& assets,
                                  const std::string& served = {});

}  // namespace tie::wsd
