// Turns one model's asset folder into sealed shared memory. Called by ModelStore, once per model and version.
// The weights file is copied into private memory first, and hashed and packed from that copy: a file that changes
// meanwhile cannot have one digest and other weights, and a file cut short cannot end the process. Peak memory: the
// file plus the packed image. Threads: hashing runs beside packing on a thread of its own for the length of the call.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "crypto/sha256.h"
#include "inference/bones/rank_place.h"
#include "os/fd.h"
#include "supervision/model_owner/model_identity.h"

namespace tie::bones {
class ThreadPool;
}
namespace tie::prefix {
class PoolOwner;
}

namespace tie::owner {

class GpuHost;
class GpuWeights;

inline constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
inline constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

struct LoadedModel {
  std::string name;
  bones::RankPlace grid;            // how many ranks the weights are packed for
  os::Fd weights;                   // memfd, all four seals: the packed image (bones/weights_image.h) of rank 0; with
                                    // `gpu` the table of what lies there (bones/cuda/device_weights.h)
  std::shared_ptr<GpuWeights> gpu;  // null: the weights lie in this machine's memory
  std::vector<os::Fd> later_ranks;  // the same of ranks 1, 2, ...
  std::vector<std::shared_ptr<GpuWeights>> later_gpus;  // with `gpu`: theirs, each on a GPU of its own
  os::Fd tokenizer;                                     // memfd, all four seals: the vocabulary image
  size_t weights_bytes = 0;                             // of all ranks together
  size_t tokenizer_bytes = 0;
  ModelDigests digests;
  crypto::Digest model_id{};
  uint32_t context_tokens = 0;
  std::string kv_cache;          // as its record says
  bool gpu_fast_kernels = true;  // likewise
  int64_t load_ms = 0;
  std::shared_ptr<prefix::PoolOwner> pool;  // the model's system-prompt prefix cache; null when the owner serves none
};

// Errors: kNotFound / kIo (a file is missing), kCorrupt and kUnsupportedFeature (from bones), kTooLarge, those of the
// GPU when the model must go there. `pool` is used for packing only. Without `gpu` "auto" is the CPU.
Result<LoadedModel> load_model(const std::string& name, const std::string& folder, bones::ThreadPool* pool,
                               GpuHost* gpu = nullptr);

}  // namespace tie::owner
