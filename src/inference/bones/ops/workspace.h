// All memory of a forward pass, allocated once. Sizes follow from the config and the options; every array is 64-byte
// aligned and zeroed. Thread-private parts are padded so that no two threads share a cache line.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/model.h"
#include "inference/bones/ops/best_ids.h"
#include "inference/bones/ops/key_shares.h"

namespace tie::bones {

struct UnmapMemory {
  size_t bytes = 0;
  void operator()(std::byte* p) const;
};

// Hands out aligned pieces of one allocation: first pass (no memory) counts, second pass gives pointers.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::byte* start) : start_(start) {}  // over memory that is somebody else's
  template <typename T>
  T* take(size_t count) {
    const size_t at = used_;
    used_ += (count * sizeof(T) + 127) / 64 * 64;
    return start_ ? reinterpret_cast<T*>(start_ + at) : nullptr;
  }
  bool allocate();  // after the counting pass; false when there is no memory
  size_t used() const { return used_; }

 private:
  std::unique_ptr<std::byte[], UnmapMemory> memory_;
  std::byte* start_ = nullptr;
  size_t memory_bytes_ = 0, used_ = 0;
};

// Buffers of an Activations for up to `max_rows` rows of k inputs.
Activations take_activations(Arena& arena, uint32_t max_rows, uint32_t k);

// The part of `all` that starts at row `first` (a multiple of its tiles' rows): a batch of its own.
Activations rows_from(const Activations& all, size_t first);

struct alignas(64) ThreadScratch {
  std::byte* matmul = nullptr;
  float* row_scale = nullptr;  // [max_rows]
  float* gate = nullptr;       // [rows][columns of a run]
  float* up = nullptr;
  float* block = nullptr;               // [8][head_dim]: one key block of one tile
  float* totals = nullptr;              // [kItemTiles][8][head_dim]
  float* heads = nullptr;               // [8][head_dim]: query heads of an item that other threads attend to as well
  std::byte* queries = nullptr;         // [kItemTiles] attention_scratch_bytes
  Activations in_acts, attention_acts;  // of a small batch, which every thread quantises for itself
  TopScratch top;
};

inline constexpr uint32_t kSmallBatchRows =
    8;  // up to here quantising everything on every thread is cheaper than a barrier
inline constexpr uint32_t kGateColumns = 128;     // widest run of gate columns a thread computes at a time
inline constexpr uint32_t kGateFloats = 4096;     // and the most outputs of a small batch
inline constexpr uint32_t kSplitPartials = 1024;  // key blocks that a long decode may spread over threads
inline constexpr uint32_t kSplitTiles = 4;        // and fewer items than this for each thread

inline constexpr uint32_t kItemTiles = 8;  // tiles of rows that an item of attention has at the most

struct Workspace {
  Arena arena;
  uint32_t max_rows = 0, max_logit_rows = 0;
  float* x = nullptr;          // [rows][n_embd] residual stream
  float* projected = nullptr;  // [rows][n_embd], only with post norms
  float* q = nullptr;          // [rows][n_heads * head_dim]
  float* k = nullptr;          // [rows][n_kv_heads * head_dim]
  float* v = nullptr;
  float* attended = nullptr;  // as q
  float* cos[2] = {};         // [rows][rope_dim / 2]: 0 global, 1 local
  float* sin[2] = {};
  float* head_in = nullptr;  // [logit rows][n_embd]
  float* logits = nullptr;
  size_t logits_stride = 0;
  BestTable best;                   // a list for each thread
  Candidate* best_rows = nullptr;   // [logit rows][kMostBest]: merged
  uint32_t* best_counts = nullptr;  // [logit rows]
  uint32_t* position = nullptr;     // [rows]
  uint32_t* sequence = nullptr;     // [rows]
  Activations in_acts, attention_acts, ffn_acts, head_acts;
  std::vector<ThreadScratch> threads;
  std::vector<AttentionItem> items;  // capacity reserved at attach
  float* partial_acc = nullptr;      // [kSplitPartials][8][head_dim]
  AttentionPartial* partials = nullptr;
  std::atomic<uint32_t>* next_item = nullptr;  // [n_layers * 16]: one line per layer
  // Of a split batch: where threads begin, in layers that see all keys and in those with a window, and for each item
  // the blocks that are done in a layer, [kSplitTiles * threads * 16]: a line each, 0 between layers.
  std::vector<KeyCut> cuts[2];
  std::atomic<uint32_t>* blocks_done = nullptr;

  // False: no memory.
  bool allocate(const ModelConfig& config, const ModelOptions& options);

  // One activation scale for each group of blocks where a product needs it (Q4 weights), else one for each block.
  void set_scale_groups(bool layers_folded, bool head_folded);

 private:
  void lay_out(const ModelConfig& config, uint32_t n_threads);
};

}  // namespace tie::bones
