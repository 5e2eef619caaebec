// What a CudaModel is made of: resolved weights, buffers in GPU memory, the batch's two copies, captured graphs.
// Private to the back end: cuda_attach.cc fills it, cuda_model.cc runs steps.
#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "inference/bones/cuda/cuda_model.h"
#include "inference/bones/cuda/fast_kernels.h"
#include "inference/bones/cuda/launcher.h"
#include "inference/bones/kernels/cuda/attention.h"
#include "inference/bones/kernels/cuda/experts.h"
#include "inference/bones/rank_place.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kMaxSplits = 32;  // of one row's keys over blocks

// A matrix with the format that names its kernels.
struct GpuMatrix {
  Matrix m;
  Format format = Format::kF32;
};

struct GpuLayer {
  GpuMatrix q, k, v, o, gate, up, down;
  GpuMatrix router, expert_gates, expert_ups, expert_downs;  // of a mixture of experts: stacks
  const float *attention_norm = nullptr, *ffn_norm = nullptr, *post_attention_norm = nullptr, *post_ffn_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr, *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
};

// Pieces of one allocation: a first pass counts, a second hands out.
class Carver {
 public:
  explicit Carver(DevicePtr base) : base_(base) {}
  template <typename T>
  T* take(uint64_t count) {
    const uint64_t at = used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(base_ + at);
  }
  uint64_t used() const { return used_; }

 private:
  DevicePtr base_;
  uint64_t used_ = 0;
};

// What a step is about, in the order in which it lies in the pinned and in the GPU's copy; block tables come last.
struct BatchArea {
  int32_t* tokens = nullptr;
  uint32_t *position = nullptr, *sequence = nullptr, *logit_rows = nullptr, *below = nullptr;
  PrefillSpan* spans = nullptr;
  uint32_t* tables = nullptr;

  static BatchArea carve(Carver& from, const CudaModelOptions& o) {
    BatchArea a;
    a.tokens = from.take<int32_t>(o.max_batch_rows);
    a.position = from.take<uint32_t>(o.max_batch_rows);
    a.sequence = from.take<uint32_t>(o.max_batch_rows);
    a.logit_rows = from.take<uint32_t>(o.max_logit_rows);
    a.below = from.take<uint32_t>(o.max_logit_rows);
    a.spans = from.take<PrefillSpan>(uint64_t{o.max_sequences} + kMaxRanks);  // a cut sequence has one in each part
    a.tables = from.take<uint32_t>(uint64_t{o.max_sequences} * o.max_table_blocks);
    return a;
  }
};

struct GpuBuffers {
  float *x, *projected, *q, *k, *v, *attended, *ffn, *up, *partial, *state, *head_x, *logits, *values;
  uint16_t *narrow, *narrow_ffn;
  uint32_t *ids, *masks, *block_list;
  uint32_t* run_ids;  // the best of each run of a row: [logit rows][runs][k]
  float* run_values;
  float *router_logits, *expert_weight, *expert_out;
  uint32_t *chosen, *slot, *slot_row;
  ExpertTile* expert_tiles;
  double* frequencies[2];
};

// The shape of a step: what a captured graph depends on. The micro-batches of a pipeline follow from it.
struct StepShape {
  uint32_t rows = 0, sequences = 0, logit_rows = 0, longest_span = 0, table_stride = 0, top_k = 0;
  uint32_t parts = 1;
  bool decode = false, masked = false;
  auto key(DevicePtr kv) const { return std::tuple(rows, sequences, logit_rows, table_stride, top_k, masked, kv); }
};
using GraphKey = decltype(StepShape{}.key(0));

// Rows that go through the layers together: a batch, or one of its micro-batches.
struct StepPart {
  uint32_t first_row = 0, rows = 0, first_span = 0, spans = 0, longest_span = 0;
};

struct CudaModel::State {
  std::shared_ptr<Driver> driver;
  std::unique_ptr<Launcher> launcher;
  FastKernels fast;
  DeviceMemory weights, work, batch_memory;
  PinnedMemory host_batch, host_masks, host_out;  // host_out: rows of logits, then the best ids
  ModelConfig config, whole;                      // of what lies here, of all ranks together
  Shard shard;
  std::vector<Candidate> best;  // what forward() answers: [logit rows][kMostBest], and how many of each
  std::vector<uint32_t> best_counts;
  CudaModelOptions options;
  GpuMatrix embedding, output;
  const float* output_norm = nullptr;
  std::vector<GpuLayer> layers;
  float rope_magnitude[2] = {1, 1};
  BatchArea device, host;
  GpuBuffers b{};
  std::array<StepPart, kMaxRanks> parts;  // of the step, StepShape::parts of them
  BatchArea now;                          // `device` and b.x from the first row of the part that is being enqueued
  float* hidden = nullptr;
  uint32_t logits_stride = 0, mask_words = 0;
  std::map<GraphKey, Graph> graphs;
  uint64_t launches = 0;

  void lay_out(Carver& from);
  Result<void> choose_kernels();
  Result<void> put_frequencies(const DeviceTable& table);
  StepShape fill_batch(const Batch& batch, const KvLayout& layout);
  void fill_parts(const Batch& batch, StepShape& shape);
  StepShape begin_part(const StepShape& step, const StepPart& part);
  Result<void> check(const Batch& batch, const DeviceKvPool& kv) const;
  Result<StepShape> step(const Batch& batch, const DeviceKvPool& kv);
  void fill_wants(std::span<const BestOf> wants, StepShape& shape);
  void put_mask(const BestOf& want, uint32_t row);
  uint32_t top_k_runs() const { return (config.n_vocab + kTopKRun - 1) / kTopKRun; }
  uint8_t* host_best() { return reinterpret_cast<uint8_t*>(host_out.data()) + logits_bytes(); }
  uint64_t logits_bytes() const { return uint64_t{options.max_logit_rows} * logits_stride * 4; }
  Result<void> find_top_k(const StepShape& shape);
  Result<void> fetch_rows(const Batch& batch);
  Result<void> enqueue(const StepShape& s, const DeviceKvPool& kv);
  Result<void> layer(uint32_t i, const StepShape& s, const DeviceKvPool& kv);
  Result<void> attention(uint32_t i, const StepShape& s, const PagedKv& kv, uint32_t pool_blocks);
  Result<void> feed_forward(const GpuLayer& w, uint32_t rows);
  Result<void> expert_feed_forward(const GpuLayer& w, uint32_t rows);
  Result<void> few_experts(const GpuLayer& w, uint32_t rows);
  Result<void> grouped_experts(const GpuLayer& w, uint32_t rows);
  Result<void> gemm_expert(const GpuMatrix& stack, uint32_t n, const uint16_t* x, const uint32_t* x_row, float* y,
                           uint32_t rows);
  Result<void> project(const GpuMatrix& w, const float* in, const float* post_norm, uint32_t rows);
  // x += product with every rank's part of the product: the first rank adds, the others have theirs alone in x.
  bool adds(const float* post_norm) const { return !post_norm && shard_is_first(); }
  bool shard_is_first() const { return !options.ranks || options.ranks->rank() == 0; }
  Result<void> add_ranks(float* at, uint64_t count);
  Result<void> begin_rows(const StepShape& s);
  Result<void> send_rows(const StepShape& s);
  Result<void> wait();
  Result<void> finish_projection(const float* post_norm, uint32_t rows);
  Result<void> head(const StepShape& s);
  Result<void> gemv(const GpuMatrix& w, const GpuMatrix* up, const float* x, const float* norm, float* y,
                    uint32_t stride, uint32_t rows, bool add);
  Result<void> gemv_heads(const GpuLayer& w);
  Result<void> gemm(const GpuMatrix& w, const uint16_t* x, float* y, uint32_t stride, uint32_t rows, bool add);
  Result<void> narrow(const float* x, const float* norm, uint16_t* out, uint32_t n, uint32_t rows);
  Gate gate() const { return config.activation == Activation::kGeluTanh ? Gate::kGelu : Gate::kSilu; }
  uint32_t splits(uint32_t rows) const {
    return std::clamp(2 * options.multiprocessors / (rows * config.n_kv_heads), 1u, kMaxSplits);
  }
};

}  // namespace tie::bones::cuda
