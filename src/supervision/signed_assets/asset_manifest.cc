#include "supervision/signed_assets/asset_manifest.h"

#include <filesystem>

#include "crypto/ed25519.h"
#include "crypto/ed25519_pem.h"
#include "os/fd.h"

namespace tie::assets {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolders[] = {"models", "prompts"};
constexpr size_t kHexDigits = 2 * crypto::kSha256Bytes;
constexpr size_t kMaxKeyFileBytes = 4096;

bool is_safe_path(std::string_view path) {
  bool below = false;
  for (const char* folder : kFolders) below = below || path.starts_with(std::string(folder) + "/");
  if (!below || path.ends_with('/')) return false;
  for (size_t at = 0; at <= path.size();) {
    size_t end = std::min(path.find('/', at), path.size());
    std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  for (char c : path)
    if (static_cast<unsigned char>(c) < ' ') return false;
  return true;
}

Result<std::string> relative_name(const fs::path& file, const std::string& folder) {
  std::string path = file.lexically_relative(folder);
  if (!is_safe_path(path))
    return fail(Code::kBadRequest, "a file name of the assets has characters that it must not have");
  return path;
}

std::unexpected<Error> not_trusted(const std::string& sentence) {
  return fail(Code::kPermissionDenied, sentence);
}

}  // namespace

Result<AssetManifest> AssetManifest::measure(const std::string& folder) {
  AssetManifest out;
  for (const char* below : kFolders) {
    std::error_code error;
    fs::path root = fs::path(folder) / below;
    if (!fs::is_directory(root, error)) continue;
    for (auto entry = fs::recursive_directory_iterator(root, error); entry != fs::recursive_directory_iterator();
         entry.increment(error)) {
      if (error) break;
      if (!entry->is_regular_file(error)) continue;
      TIE_TRY(std::string path, relative_name(entry->path(), folder));
      if (out.files_.size() >= kMaxAssetFiles) return fail(Code::kTooLarge, folder + " holds too many files");
      TIE_TRY(out.files_[path], crypto::sha256_file(entry->path()));
    }
    if (error) return fail(Code::kIo, "reading " + root.string() + ": " + error.message());
  }
  if (out.files_.empty()) return fail(Code::kNotFound, "no models in " + folder);
  return out;
}

Result<AssetManifest> AssetManifest::parse(std::string_view text) {
  AssetManifest out;
  std::string previous;
  for (size_t at = 0, number = 1; at < text.size(); ++number) {
    size_t end = text.find('\n', at);
    std::string_view line = text.substr(at, end == std::string_view::npos ? end : end - at);
    auto bad = [&] { return fail(Code::kCorrupt, "line " + std::to_string(number) + " of the manifest is malformed"); };
    if (end == std::string_view::npos || line.size() < kHexDigits + 3 || line.substr(kHexDigits, 2) != "  ")
      return bad();
    auto digest = from_hex(line.substr(0, kHexDigits));
    std::string path(line.substr(kHexDigits + 2));
    if (!digest || to_hex(*digest) != line.substr(0, kHexDigits)) return bad();  // one form: small letters
    if (!is_safe_path(path) || path <= previous || out.files_.size() >= kMaxAssetFiles) return bad();
    TIE_TRY(out.files_[path], crypto::digest_from(*digest, "digest"));
    previous = path;
    at = end + 1;
  }
  if (out.files_.empty()) return fail(Code::kCorrupt, "the manifest names no file");
  return out;
}

Result<AssetManifest> AssetManifest::open_signed(const std::string& folder, ByteView public_key) {
  auto text = os::read_file(folder + "/" + kManifestFile, kMaxManifestBytes);
  auto signature = os::read_file(folder + "/" + kSignatureFile, kMaxKeyFileBytes);
  if (!text || !signature)
    return not_trusted("the assets in " + folder +
                       " are not signed, but this node takes signed ones only: tie assets sign");
  if (!crypto::ed25519_verify(public_key, *text, *signature))
    return not_trusted("the signature of the assets in " + folder + " is not that of this node's operator");
  return parse(as_text(*text));
}

std::string AssetManifest::text() const {
  std::string out;
  for (const auto& [path, digest] : files_) out += to_hex(digest) + "  " + path + "\n";
  return out;
}

Result<void> AssetManifest::check(const std::string& path, const crypto::Digest& digest) const {
  auto listed = files_.find(path);
  if (listed == files_.end()) return not_trusted(path + " is not in the signed manifest: tie assets sign");
  if (listed->second != digest) return not_trusted(path + " is not the file that was signed");
  return {};
}

Result<AssetManifest> sign_assets(const std::string& folder, ByteView seed) {
  TIE_TRY(AssetManifest manifest, AssetManifest::measure(folder));
  std::string text = manifest.text();
  TIE_TRY(Bytes signature, crypto::ed25519_sign(seed, as_bytes(text)));
  TIE_CHECK_OK(os::write_file_atomic(folder + "/" + kManifestFile, as_bytes(text), 0644));
  TIE_CHECK_OK(os::write_file_atomic(folder + "/" + kSignatureFile, signature, 0644));
  return manifest;
}

Result<AssetManifest> verify_assets(const std::string& folder, ByteView public_key) {
  TIE_TRY(AssetManifest signed_one, AssetManifest::open_signed(folder, public_key));
  TIE_TRY(AssetManifest present, AssetManifest::measure(folder));
  for (const auto& [path, digest] : present.files()) TIE_CHECK_OK(signed_one.check(path, digest));
  for (const auto& [path, digest] : signed_one.files())
    if (!present.files().contains(path))
      return not_trusted(path + " is in the signed manifest and missing from the folder");
  return signed_one;
}

Result<Bytes> read_public_key(const std::string& path) {
  TIE_TRY(Bytes pem, os::read_file(path, kMaxKeyFileBytes));
  auto key = crypto::ed25519_public_from_pem(as_text(pem));
  if (!key) return std::unexpected(std::move(key.error()).context(path));
  return key;
}

}  // namespace tie::assets
