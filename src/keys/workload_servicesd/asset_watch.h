// Notices that models or system prompts were replaced: their facts are read again, so that the keeper makes keys that
// state them; so are they when the owner says that it hands out another version. Looks at names, sizes, times and
// inodes only; the files are hashed when those differ and have been still for one look. Threads: one. Source:
// ARCHITECTURE.md, "Keys of the node" (a change of assets rotates keys).
#pragma once
#include <optional>
#include <string>

#include "keys/workload_servicesd/node_facts.h"

namespace tie::wsd {

class AssetWatch {
 public:
  AssetWatch(std::string manifest, std::string assets, std::string served = {});
  // The new facts after a change, once; nullopt when nothing changed, when it still changes, or when it cannot be read
  // (tried again).
  std::optional<NodeFacts> look();

 private:
  std::string fingerprint() const;
  const std::string manifest_, assets_, served_;
  std::string known_, last_;
};

}  // namespace tie::wsd
