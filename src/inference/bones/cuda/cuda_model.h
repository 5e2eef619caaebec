// The GPU back end: runs a whole model through the kernels of kernels/cuda. Attaches weights that lie in GPU memory
// (its own or another process's), owns the workspace, the stream and the captured graphs. Up to four rows take the
// path of fused matrix-vector products, more take tensor cores; a batch in which every sequence has one row is decode,
// captured as a CUDA graph when its shape comes for the second time and replayed from then on. Between the copy of the
// batch to the GPU and the arrival of logits nothing waits. Threads: one at a time. Ranks: each process attaches its
// own shard with its communicators (nccl.h), all make the same calls, graphs hold NCCL's work like the kernels'. Tensor
// ranks add up after the embedding, the attention and the feed-forward; of the best ids and of whole
// rows each rank has those of its own columns. Stages hand rows on; a batch of at least two times
// micro_batch_rows goes in parts, so that a stage computes one while the next computes the part before. Numbers:
// products of more than four rows round activations to bf16; unlike the CPU's kernels, results are equal for equal
// shapes of batch, not across shapes.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inference/bones/cuda/device_weights.h"
#include "inference/bones/cuda/nccl.h"
#include "inference/bones/model.h"
#include "inference/bones/ops/rope.h"

namespace tie::bones::cuda {

struct CudaModelOptions {
  uint32_t max_batch_rows = 512, max_logit_rows = 64, max_sequences = 256;
  uint32_t max_top_k = 64;
  uint32_t max_table_blocks = 4096;  // of one sequence
  uint32_t multiprocessors = 0;      // 0: ask the driver
  bool graphs = true;
  // With the weights of one rank, and only then: the ranks of its stage, and the stages of its tensor rank.
  std::shared_ptr<NcclRanks> ranks = {}, stages = {};
  bool fast_kernels = true;  // where the GPU has its own units and they agree with the portable kernels
  uint32_t fast_rows = 128;  // of a batch, from which on they are used
  // Of a part of a batch that goes through stages, at least; each part reads all weights, so fewer rows would take as
  // long as the whole batch. At most as many parts as stages.
  uint32_t micro_batch_rows = 256;
};

// The paged cache in GPU memory; the sizes are those of `layout` (a rank's: of its own heads), the order of elements is
// the GPU's (pointwise.h). KvType::kQ8 is e4m3 here: 8 bits and a scale for each token's key and value of a head.
struct DeviceKvPool {
  DevicePtr base = 0;
  uint32_t n_blocks = 0;
  KvLayout layout;
};

class CudaModel {
 public:
  // `kernels`: the fat binary of kernels.cu. The table must have been parsed or made by load_weights.
  static Result<CudaModel> attach(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels,
                                  const DeviceTable& table, DeviceMemory weights, const CudaModelOptions& options);
  CudaModel(CudaModel&&) noexcept;
  CudaModel& operator=(CudaModel&&) noexcept;
  ~CudaModel();

  const ModelConfig& config() const;  // of the whole model
  // Which kernels were chosen and why, and the word of it for a log (fast_kernels.h).
  const std::string& kernels() const;
  const std::string& kernel_word() const;

  const Shard& shard() const;       // what lies here
  const ModelConfig& part() const;  // the model as this rank sees it: its KV pool's sizes

  // What forward() checks first; nothing else fails for a batch's sake.
  Result<void> check(const Batch& batch, const DeviceKvPool& kv) const;
  // As Model::forward; logits, or the best ids of rows that want no more, arrive in pinned memory, valid until the next
  // call. On a rank: those of its own columns (n_vocab and the first of them as shard() says), no rows before the last
  // stage.
  Result<Logits> forward(const Batch& batch, const DeviceKvPool& kv);

  // Copies whole blocks between the pool and pinned kvxfer memory, on a stream of its own; returns when done.
  Result<void> copy_blocks(const DeviceKvPool& kv, std::span<const uint32_t> blocks, const PinnedMemory& records,
                           bool to_pool);

  uint32_t captured_graphs() const;
  uint64_t graph_launches() const;

 private:
  struct State;
  explicit CudaModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tie::bones::cuda
