// Which files an asset folder holds, signed by the operator. ASSETS/manifest: a line "<sha256>  <path>\n" for each
// regular file below models/ and prompts/, sorted; ASSETS/manifest.sig: the Ed25519 signature over its bytes, 64 bytes.
// With a key on the node, nothing is loaded or served that the manifest does not name with this digest. Plain values;
// any thread.
#pragma once
#include <map>
#include <string>

#include "base/result.h"
#include "crypto/sha256.h"

namespace tie::assets {

inline constexpr const char* kManifestFile = "manifest";
inline constexpr const char* kSignatureFile = "manifest.sig";
inline constexpr size_t kMaxManifestBytes = size_t{4} << 20;
inline constexpr size_t kMaxAssetFiles = 16'384;

class AssetManifest {
 public:
  // Hashes what is there (0.6 ms a MB). kNotFound without any file; kTooLarge over kMaxAssetFiles.
  static Result<AssetManifest> measure(const std::string& folder);
  // Hostile input. kCorrupt names the line: not sorted, a path that leaves the folder, a digest that is none.
  static Result<AssetManifest> parse(std::string_view text);
  // The folder's manifest, if `public_key` has signed it. kPermissionDenied: it is missing, or not signed by this key.
  static Result<AssetManifest> open_signed(const std::string& folder, ByteView public_key);

  std::string text() const;
  const std::map<std::string, crypto::Digest>& files() const { return files_; }
  // kPermissionDenied, naming the path, unless it is listed with this digest.
  Result<void> check(const std::string& path, const crypto::Digest& digest) const;

 private:
  std::map<std::string, crypto::Digest> files_;  // by path relative to the folder
};

// Measures the folder and writes manifest and signature. `seed`: the operator's Ed25519 seed.
Result<AssetManifest> sign_assets(const std::string& folder, ByteView seed);
// The whole folder against its signed manifest: kPermissionDenied names the first file that is missing, added or
// changed.
Result<AssetManifest> verify_assets(const std::string& folder, ByteView public_key);

// A public key file as `tie assets keygen` and openssl write it (PEM). kCorrupt: something else.
Result<Bytes> read_public_key(const std::string& path);

}  // namespace tie::assets
