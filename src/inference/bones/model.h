// Bones, the model library: attaches packed weights and runs one forward pass per scheduled batch. Knows nothing of
// requests, text or sampling. Callers: the engine (one thread at a time per Model), `tie eval` and the tests. The
// image, the pool and the KV memory must outlive the Model. Numbers: for a given kernel set the logits of a row are
// bit-identical whether it runs alone, in any batch, or with its prompt cut into any chunks. Memory: everything is
// allocated by attach(); forward() allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "inference/bones/best_of.h"
#include "inference/bones/kv_layout.h"
#include "inference/bones/model_config.h"
#include "inference/bones/thread_pool.h"
#include "inference/bones/weights_image.h"

namespace tie::bones {

// Consecutive rows of a batch that are consecutive positions of one sequence: a prefill chunk, or one row of decode, or
// a draft to verify.
struct SequenceSpan {
  uint32_t first_row = 0;
  uint32_t n_rows = 0;
  uint32_t first_position = 0;  // tokens of this sequence already in the cache
  std::span<const uint32_t>
      block_table;  // KV blocks of positions [0, first_position + n_rows); entry i covers block_tokens positions
};

// Replaces the embedding of one row (image patches). values: n_embd floats, used as they are.
struct EmbeddingRow {
  uint32_t row = 0;
  const float* values = nullptr;
};

struct Batch {
  std::span<const int32_t> tokens;  // T ids; T <= max_batch_rows
  std::span<const SequenceSpan>
      sequences;  // cover rows [0, T) in order, without gaps; two spans must not write the same KV block
  std::span<const uint32_t> logit_rows;      // rows whose logits are wanted, ascending; may be empty
  std::span<const EmbeddingRow> embeddings;  // ascending by row; usually empty
  std::span<const BestOf> best = {};         // one for each of logit_rows; empty: every row is wanted whole
};

// Row i belongs to batch.logit_rows[i]. Valid until the next forward() of the same Model; the caller may change the
// values in place. Of a row whose best ids were asked for only these are there, not the row.
struct Logits {
  float* data = nullptr;
  size_t stride = 0;  // floats between rows
  uint32_t rows = 0;
  uint32_t n_vocab = 0;
  BestRows best = {};
  std::span<float> row(uint32_t i) const { return {data + i * stride, n_vocab}; }
};

class Communicator;

struct ModelOptions {
  ThreadPool* pool = nullptr;     // required; not owned
  std::string_view kernels = {};  // "reference", "avx2", "avx512", "avx512fp16", "amx"; empty = the best this CPU has
  uint32_t max_batch_rows = 512;  // tokens in one forward pass
  uint32_t max_logit_rows = 64;
  uint32_t max_sequences = 256;
  Communicator* ranks = nullptr;  // with the image of one rank, and only then: its peers; not owned
};

class Model {
 public:
  struct State;  // defined in model/forward.h

  // Checks the image and allocates the workspace; the weights are used where they lie. Cost: well under a millisecond
  // plus the workspace. Errors: kCorrupt (image), kUnsupportedFeature (version, or a kernel set that is unknown or that
  // this CPU lacks), kBadRequest (options).
  static Result<Model> attach(std::span<const std::byte> image, const ModelOptions& options);

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const ModelConfig& config() const;  // of the whole model, also when this is one rank of it
  std::string_view kernels() const;   // name of the kernel set in use

  // Runs all rows of the batch through the model: writes their keys and values into `kv`, returns logits of the rows
  // asked for. Every index is checked before anything is written: kBadRequest (shape of the batch, token id, block
  // number, table too short), kContextExceeded. One rank of a model: every rank makes the same call; `kv` is the memory
  // that all of them share, with the whole model's layout; logits are there when every rank of the last stage has
  // returned (rank_team.h); kRuntimeLost when a peer is gone.
  Result<Logits> forward(const Batch& batch, const KvPool& kv);
  // Of one rank of a model, once every rank of the last stage has returned from forward(): the best ids asked for.
  BestRows merge_best(const Batch& batch);
  // The checks alone.
  Result<void> check(const Batch& batch, const KvPool& kv) const;

 private:
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Names of the kernel sets that this CPU can run, best first; "reference" is always last.
std::vector<std::string_view> available_kernel_sets();

// For the log, one word: why the set "amx" is not used although this CPU claims tiles (amx_state.h); empty: no such
// case.
std::string_view kernel_set_note();

}  // namespace tie::bones
