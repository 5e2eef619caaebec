#include "keys/workload_servicesd/asset_watch.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "crypto/sha256.h"

namespace tie::wsd {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxFilesLookedAt = 4096;

void append_stat(Bytes& out, const std::string& path) {
  struct stat st{};
  if (::stat(path.c_str(), &st) != 0) return;
  append(out, path);
  for (uint64_t number : {static_cast<uint64_t>(st.st_ino), static_cast<uint64_t>(st.st_size),
                          static_cast<uint64_t>(st.st_mtim.tv_sec), static_cast<uint64_t>(st.st_mtim.tv_nsec),
                          static_cast<uint64_t>(st.st_ctim.tv_sec), static_cast<uint64_t>(st.st_ctim.tv_nsec)})
    append_u64_be(out, number);
}

}  // namespace

AssetWatch::AssetWatch(std::string manifest, std::string assets, std::string served)
    : manifest_(std::move(manifest)), assets_(std::move(assets)), served_(std::move(served)) {
  known_ = last_ = fingerprint();
}

std::string AssetWatch::fingerprint() const {
  std::vector<std::string> paths;
  std::vector<std::string> folders = {assets_ + "/models", assets_ + "/prompts"};
  if (!served_.empty()) folders.push_back(served_);
  for (const std::string& folder : folders) {
    std::error_code error;
    for (auto entry = fs::recursive_directory_iterator(folder, error);
         !error && entry != fs::recursive_directory_iterator() && paths.size() < kMaxFilesLookedAt;
         entry.increment(error))
      paths.push_back(entry->path());
  }
  std::sort(paths.begin(), paths.end());
  Bytes seen;
  for (const std::string& path : paths) append_stat(seen, path);
  return to_hex(crypto::sha256(seen));
}

std::optional<NodeFacts> AssetWatch::look() {
  const std::string now = fingerprint();
  const bool still = now == std::exchange(last_, now);
  if (now == known_ || !still) return std::nullopt;
  auto facts = read_node_facts(manifest_, assets_, served_);
  if (!facts) return std::nullopt;
  known_ = now;
  return std::move(*facts);
}

}  // namespace tie::wsd
