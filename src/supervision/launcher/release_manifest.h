// What runs, measured: the digest of every installed program and library of the product, and the release id over them.
// The client's policy pins that id; the build writes the policy, the running node only reports. Files under bin/,
// libexec/ and lib/ of the prefix count (symbolic links by their target's content); models, prompts and configuration
// do not: they have digests of their own in the claims. Pure functions; cost about 0.6 ms a MB.
#pragma once
#include <string>
#include <vector>

#include "base/bytes.h"

namespace tie::launcher {

struct MeasuredFile {
  std::string path;    // relative to the prefix
  std::string sha256;  // lower-case hex
};

struct ReleaseManifest {
  std::vector<MeasuredFile> files;  // sorted by path
  // The manifest file: a line "<sha256>  <path>\n" for each file, the format of sha256sum.
  std::string text() const;
  // SHA-256 over text(), lower-case hex.
  std::string release_id() const;
};

Result<ReleaseManifest> measure_release(const std::string& prefix);

// PREFIX of the installed tree that this program runs from: the folder above bin/ or libexec/tie/.
Result<std::string> installed_prefix();

}  // namespace tie::launcher
