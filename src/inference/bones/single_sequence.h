// One model and one sequence, for tools and tests: loads a GGUF file, keeps a private KV cache, evaluates tokens in
// chunks. Not for the engine. Owns everything; one thread at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "inference/bones/model.h"

namespace tie::bones {

struct SingleSequenceOptions {
  uint32_t n_threads = 2;
  std::string kernels;                           // empty = the best
  uint32_t max_tokens = 4096;                    // of the sequence; at most the model's context
  uint32_t chunk_rows = 512;                     // rows of one forward pass
  uint32_t logit_rows = 64;                      // rows of logits kept at a time
  std::optional<KvType> kv_type = KvType::kF16;  // empty: as a node runs the model (usual_kv_type)
};

class SingleSequence {
 public:
  static Result<SingleSequence> from_gguf(ByteView gguf, const SingleSequenceOptions& options);
  SingleSequence(SingleSequence&&) noexcept;
  SingleSequence& operator=(SingleSequence&&) noexcept;
  ~SingleSequence();

  const ModelConfig& config() const;
  std::string_view kernels() const;
  void restart();  // forgets the sequence
  uint32_t n_tokens() const;
  // The cache as a tool may look at it: the sequence's index-th block, as kv_layout() says. The index is in range.
  std::span<const std::byte> kv_block(uint32_t index) const;
  const KvLayout& kv_layout() const;

  // Appends tokens; returns the logits after the last one (valid until the next call). kContextExceeded beyond
  // max_tokens.
  Result<std::span<float>> append(std::span<const int32_t> tokens);
  // Appends tokens and calls visit(context, index, logits) for every index >= first_visited.
  Result<void> append_each(std::span<const int32_t> tokens, uint32_t first_visited,
                           void (*visit)(void*, uint32_t, std::span<float>), void* context);

 private:
  struct State;
  explicit SingleSequence(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;
};
// log of the sum of exp(logit), in double precision: a log-probability is logit minus this.
double log_sum_exp(std::span<const float> logits);
// log softmax of one entry.
double logprob_of(std::span<const float> logits, int32_t id);
// The `count` likeliest ids, best first; ties by smaller id.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, uint32_t count);

}  // namespace tie::bones
