// Where the runtime's weights and vocabulary come from: descriptors of sealed memory from tie-model-owner, or two files
// for work on the runtime alone. The mappings are read-only and must outlive the model.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "crypto/sha256.h"
#include "inference/bones/rank_place.h"
#include "os/memfd.h"

namespace tie::runtime_host {

// Weights that the owner holds in GPU memory.
struct GpuShare {
  std::array<uint8_t, 64> handle{};  // the driver's, for another process
  uint64_t bytes = 0;
  uint32_t gpu = 0;  // the GPU's number (bones/cuda/gpu_numbers.h)
  os::Fd loan;       // the connection to the owner: open for as long as we use them; its end means that they are gone
};

struct AttachedModel {
  os::Mapping weights;                      // a packed image (bones/weights_image.h), of rank 0 when there are several;
                                            // with `gpu` the table of what lies there (bones/cuda/device_weights.h)
  std::optional<GpuShare> gpu;              // of rank 0; its loan is that of every rank
  std::vector<GpuShare> later_gpus;         // with `gpu`: of ranks 1, 2, ...
  os::Mapping tokenizer;                    // a vocabulary image (text/vocab_image.h)
  bones::RankPlace grid;                    // what the owner has packed the weights for
  std::vector<os::Fd> later_ranks;          // the sealed images (with `gpu`: tables) of ranks 1, 2, ...
  std::string kv_cache;                     // the KV cache's type as model.toml names it; empty: the usual
  bool gpu_fast_kernels = true;             // false: model.toml says so
  crypto::Digest model_id{}, release_id{};  // as the owner says; zero without one
};

// Asks the owner, again and again until the deadline: it may still be starting or loading. Every seal of both
// descriptors is required before mapping. A model in GPU memory is lent to one runtime at a time: kNotReady, and
// another try, while an earlier one still holds it; while the owner looks at all of it the deadline moves on with each
// step of the look. stop_fd: readable ends the wait with kCancelled. Errors:
// kModelNotFound, kDeadline, kPermissionDenied (a seal is missing).
Result<AttachedModel> attach_from_owner(const std::string& owner_socket, const std::string& model, Deadline deadline,
                                        int stop_fd);

Result<AttachedModel> attach_from_files(const std::string& weights_image, const std::string& tokenizer_image);

}  // namespace tie::runtime_host
