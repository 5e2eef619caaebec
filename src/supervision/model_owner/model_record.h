// What of a model's model.toml concerns whoever loads it: read and parsed once, into one struct. Called by the loader
// and by ModelStore's look at the files. Pure; no state.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "inference/bones/rank_place.h"

namespace tie::owner {

inline constexpr size_t kMaxRecordBytes = size_t{64} << 10;

enum class DeviceWish { kCpu, kCuda, kAuto };

struct ModelRecord {
  bones::RankPlace grid;                 // `ranks`, `stages`: 1 to 64 each
  DeviceWish device = DeviceWish::kCpu;  // `device`: "cpu", "cuda" or "auto"
  std::vector<uint32_t> gpus;            // `gpus`: a GPU's number for each rank; empty when it says nothing
  std::string kv_cache;                  // `kv_cache`: "f16", "bf16" or "q8"; empty when it says nothing
  bool gpu_fast_kernels = true;          // `gpu_fast_kernels`: whether a GPU's own matrix units may be used

  // What differs from a record that says nothing, one line for each: "" for that one.
  std::string summary() const;
};

// The record of an asset folder; the defaults when there is none. kBadRequest names the key that has another value than
// those above, kCorrupt what is no TOML.
Result<ModelRecord> read_model_record(const std::string& folder);

}  // namespace tie::owner
