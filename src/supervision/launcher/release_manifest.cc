#include "supervision/launcher/release_manifest.h"

#include <algorithm>
#include <filesystem>

#include "crypto/sha256.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMeasuredFolders[] = {"bin", "lib", "libexec"};
constexpr size_t kMaxFiles = 4096;

}  // namespace

std::string ReleaseManifest::text() const {
  std::string out;
  for (const MeasuredFile& file : files) out += file.sha256 + "  " + file.path + "\n";
  return out;
}

std::string ReleaseManifest::release_id() const {
  return to_hex(crypto::sha256(as_bytes(text())));
}

Result<ReleaseManifest> measure_release(const std::string& prefix) {
  ReleaseManifest out;
  for (const char* folder : kMeasuredFolders) {
    std::error_code error;
    fs::path root = fs::path(prefix) / folder;
    if (!fs::is_directory(root, error)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root, error)) {
      if (!entry.is_regular_file(error)) continue;
      std::string path = fs::path(entry.path()).lexically_relative(prefix);
      if (path.find('\n') != std::string::npos)
        return fail(Code::kBadRequest, "a file name with a line end cannot be measured");
      if (out.files.size() >= kMaxFiles)
        return fail(Code::kTooLarge, prefix + " holds more than 4096 files; is it an installed tree?");
      TIE_TRY(crypto::Digest digest, crypto::sha256_file(entry.path()));
      out.files.push_back({path, to_hex(digest)});
    }
    if (error) return fail(Code::kIo, "reading " + root.string() + ": " + error.message());
  }
  if (out.files.empty()) return fail(Code::kNotFound, prefix + " has no programs in bin/ or libexec/");
  std::sort(out.files.begin(), out.files.end(),
            [](const MeasuredFile& a, const MeasuredFile& b) { return a.path < b.path; });
  return out;
}

Result<std::string> installed_prefix() {
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return fail(Code::kIo, "reading /proc/self/exe: " + error.message());
  fs::path folder = self.parent_path();
  if (folder.filename() == "bin") return folder.parent_path().string();
  if (folder.filename() == "tie" && folder.parent_path().filename() == "libexec")
    return folder.parent_path().parent_path().string();
  return fail(Code::kFailedPrecondition,
              self.string() + " is not in an installed tree (PREFIX/bin or PREFIX/libexec/tie); install it first");
}

}  // namespace tie::launcher
