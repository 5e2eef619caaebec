// The packed weights: one relocatable, read-only run of bytes in the layout the kernels want, built once by
// tie-model-owner and attached by every runtime without copying. Two steps: plan() checks the whole file and tells the
// size, write() fills the caller's memory (a memfd mapping). Thread-safe once built. Hostile files give an error that
// names the tensor or key and the reason; nothing is allocated by an unchecked count. Layout: ImageHeader,
// TensorEntry[n_tensors], then tensors, each 64-byte aligned. Offsets from the start of the image. Little-endian, this
// machine only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "inference/bones/model_config.h"
#include "inference/bones/rank_place.h"

namespace tie::bones {

class ThreadPool;

inline constexpr uint32_t kImageVersion = 4;
inline constexpr size_t kImageAlignment = 64;

// How the elements of a packed tensor lie in memory; kernels/tile.h describes each.
enum class Packing : uint32_t {
  kVector = 0,  // float32 values, in order (norms, biases, rope factors)
  kTileQ4 = 1,  // 4-bit codes, integer scale and minimum per 32, unit per column: from Q4_0, Q4_1, Q4_K
  kTileQ5 = 2,  // 5-bit codes, scale and minimum per 32: from Q5_0, Q5_1, Q5_K
  kTileQ6 = 3,  // 6-bit codes, scale per 16: from Q6_K
  kTileQ8 = 4,  // 8-bit codes, scale per 32: from Q8_0
  kTileF16 = 5,
  kTileBf16 = 6,
  kTileF32 = 7,
};

enum class Role : uint32_t {
  kEmbedding = 0,
  kOutputNorm,
  kOutput,
  kRopeFactors,
  kAttentionNorm = 16,
  kQ,
  kK,
  kV,
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,
  kAttentionOutput,
  kPostAttentionNorm,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
  kPostFfnNorm,
  kRouter,  // of a mixture of experts; the next three hold all experts' matrices, one below the other
  kExpertGates,
  kExpertUps,
  kExpertDowns,
};
const char* role_name(Role role);

struct TensorEntry {
  Role role;
  uint32_t layer;  // 0 for tensors of the whole model
  Packing packing;
  uint32_t n;  // outputs (rows of the file's matrix); length of a vector
  uint32_t k;  // inputs; 1 for a vector
  uint32_t reserved;
  uint64_t offset;  // from the start of the image
  uint64_t bytes;
};

struct ImageHeader {
  char magic[8];  // "TIEBONES"
  uint32_t version;
  uint32_t packing_version;
  uint64_t image_bytes;
  uint32_t n_tensors;
  uint32_t header_bytes;  // sizeof(ImageHeader)
  ModelConfig config;     // of the whole model
  RankPlace place;        // which part of it this image holds; entries have that part's shapes and layer numbers
};

class PackPlan {
 public:
  // Reads the metadata and tensor table of a GGUF file and decides every tensor's packing. `gguf` must outlive the
  // plan. Errors: kUnsupportedFeature (architecture, element type), kCorrupt (missing, duplicate or misshapen tensor,
  // value out of range), kTooLarge.
  // With a place: the image of one rank (rank_place.h); also kUnsupportedFeature when the model cannot be cut that way.
  static Result<PackPlan> from_gguf(ByteView gguf, RankPlace place = {});

  PackPlan(PackPlan&&) noexcept;
  PackPlan& operator=(PackPlan&&) noexcept;
  ~PackPlan();

  size_t image_bytes() const;
  const ModelConfig& config() const;  // of the whole model

  // Fills `out`, which must be exactly image_bytes() long and 64-byte aligned (kBadRequest). Cost: reads every weight
  // once; about 1 s per GB and thread.
  Result<void> write(std::span<std::byte> out, ThreadPool* pool = nullptr) const;

 private:
  struct State;
  explicit PackPlan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Convenience for tools and tests: plan and write into fresh 64-byte-aligned memory.
class OwnedImage {
 public:
  static Result<OwnedImage> from_gguf(ByteView gguf, ThreadPool* pool = nullptr, RankPlace place = {});
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t size_ = 0;
};

// A checked view of an image. Every offset, size, packing and shape has been verified against the config, so later
// reads cannot leave the image.
class WeightsImage {
 public:
  // Errors: kCorrupt naming what is wrong; kUnsupportedFeature for another version. Cost: microseconds; the weights
  // themselves are not touched.
  static Result<WeightsImage> attach(std::span<const std::byte> image);

  const ModelConfig& config() const { return config_; }  // of the whole model
  RankPlace place() const { return place_; }
  const Shard& shard() const { return shard_; }
  const TensorEntry* find(Role role, uint32_t layer = 0) const;  // nullptr when absent
  const std::byte* data(const TensorEntry& entry) const { return image_.data() + entry.offset; }
  std::span<const TensorEntry> tensors() const { return entries_; }
  size_t bytes() const { return image_.size(); }

 private:
  ModelConfig config_;
  RankPlace place_;
  Shard shard_;
  std::vector<TensorEntry> entries_;  // a private copy: the memory behind the image may be shared
  std::span<const std::byte> image_;
};

}  // namespace tie::bones
