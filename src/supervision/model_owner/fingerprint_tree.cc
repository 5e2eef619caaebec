#include "supervision/model_owner/fingerprint_tree.h"

#include <algorithm>
#include <thread>

#include "crypto/sha256.h"

namespace tie::owner {
namespace {

using namespace bones::cuda;

constexpr uint32_t kMostThreads = 16;

Fingerprint of_part(ByteView part) {
  Bytes leaves;
  for (size_t at = 0; at < part.size(); at += kFingerprintLeafBytes) {
    const crypto::Digest leaf =
        crypto::sha256(part.subspan(at, std::min<size_t>(kFingerprintLeafBytes, part.size() - at)));
    leaves.insert(leaves.end(), leaf.begin(), leaf.end());
  }
  return crypto::sha256(ByteView(leaves));
}

}  // namespace

FingerprintTree::FingerprintTree()
    : at_once_(kFingerprintPartBytes * std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads)) {
  waiting_.reserve(at_once_);
}

void FingerprintTree::add(ByteView bytes) {
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), at_once_ - waiting_.size());
    waiting_.insert(waiting_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (waiting_.size() == at_once_) hash_waiting();
  }
}

void FingerprintTree::hash_waiting() {
  const ByteView all(waiting_);
  const size_t parts = (all.size() + kFingerprintPartBytes - 1) / kFingerprintPartBytes, before = done_.size();
  done_.resize(before + parts);
  std::vector<std::thread> hashing;
  for (size_t part = 0; part < parts; ++part)
    hashing.emplace_back([&, part] {
      const size_t from = part * kFingerprintPartBytes;
      done_[before + part] = of_part(all.subspan(from, std::min<size_t>(kFingerprintPartBytes, all.size() - from)));
    });
  for (std::thread& thread : hashing) thread.join();
  waiting_.clear();
}

std::vector<Fingerprint> FingerprintTree::finish() {
  hash_waiting();
  return std::move(done_);
}

}  // namespace tie::owner
