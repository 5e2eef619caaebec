#include "supervision/signed_assets/asset_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto manifest = tie::assets::AssetManifest::parse(text);
  // What is accepted is written again as it was: there is one form of a manifest.
  if (manifest) tie::tie_check(manifest->text() == text, "a manifest has one form");
  return 0;
}
