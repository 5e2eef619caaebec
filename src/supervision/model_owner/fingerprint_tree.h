// The fingerprints of bytes that pass by, as the GPU takes them of its memory (bones/kernels/cuda/fingerprint.h), by
// OpenSSL. Called by GpuWeights while weights are copied. Threads: one at a time; hashes on up to 16 of its own.
#pragma once
#include <vector>

#include "base/bytes.h"
#include "inference/bones/cuda/fingerprints.h"

namespace tie::owner {

class FingerprintTree {
 public:
  FingerprintTree();
  void add(ByteView bytes);
  // Of all that was added; once.
  std::vector<bones::cuda::Fingerprint> finish();

 private:
  void hash_waiting();

  const size_t at_once_;  // bytes of whole parts
  Bytes waiting_;
  std::vector<bones::cuda::Fingerprint> done_;
};

}  // namespace tie::owner
