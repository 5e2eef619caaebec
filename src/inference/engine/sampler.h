// Draws the next token of one sample from a row of logits.
// Order: logit bias and penalties, end tokens forbidden below min_tokens, grammar mask, then temperature, top-k, top-p
// over what top-k left, min-p. Ties are broken towards the lower id. Position p of sample s with seed r always uses the
// same random number, so a text does not depend on batching. Below kGreedyBelow the most likely token is taken and
// nothing is random. One object per sample; draw() and accept() on one thread at a time. The workspace belongs to the
// calling thread and is shared by samples.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "inference/engine/logit_math.h"
#include "inference/engine/logprobs.h"
#include "inference/engine/sampling_options.h"
#include "inference/engine/token_table.h"

namespace tie::engine {

// Buffers of one thread that draws; everything is allocated here, once.
struct SamplerWorkspace {
  explicit SamplerWorkspace(uint32_t row_size);
  std::vector<float> exponentials, copy;
  std::vector<float> shared_row;  // for the engine: a row that several samples draw from
  std::vector<double> block_sums;
  bones::TopScratch top;
};

struct DrawRequest {
  std::span<float> row;  // all logits of the row; changed in place
  // Instead of the row: its best ids below the table's size, under the mask, at least best_needed() of them or all.
  const std::span<const Candidate>* best = nullptr;
  std::span<const uint32_t> mask;  // grammar: 1 bit per token, empty = everything is allowed
  uint64_t position = 0;           // index of the token in the output
  bool forbid_end = false;         // min_tokens not reached
};

class Sampler {
 public:
  // `prompt` is counted by the repetition penalty; at most max_output tokens will be accepted. `table` and `options`
  // must outlive the sampler.
  Sampler(const SamplingOptions& options, const TokenTable& table, uint64_t seed, uint32_t sample,
          std::span<const int32_t> prompt, size_t max_output);

  // The token, or -1 when nothing may be chosen (the mask and the forbidden ids leave none, or the row holds no
  // number). Fills *logprobs when it is not null. The row is changed in place.
  int32_t draw(const DrawRequest& request, SamplerWorkspace& workspace, TokenLogprobs* logprobs);

  // How many of a row's best ids a draw needs; 0: the whole row.
  uint32_t best_needed(bool forbid_end) const;

  // Counts a token as output. Every drawn token that is kept must be accepted before the next draw.
  void accept(int32_t token);

 private:
  struct Count {
    int32_t token = 0;
    uint32_t in_output = 0;
  };
  void adjust(std::span<float> row, const DrawRequest& request) const;
  int32_t draw_best(const DrawRequest& request, SamplerWorkspace& workspace) const;
  bool is_end(int32_t token) const;
  int32_t choose(std::span<const float> row, uint64_t position, SamplerWorkspace& workspace) const;
  int32_t choose_sorted(std::span<const Candidate> sorted, uint64_t position, SamplerWorkspace& workspace) const;
  Count& count_of(int32_t token);

  const SamplingOptions& options_;
  const TokenTable& table_;
  uint64_t seed_;
  uint32_t sample_;
  std::vector<Count> counts_;    // each token once; empty without penalties
  std::vector<uint32_t> slots_;  // open addressing over counts_ (index + 1), a power of two, at most half full
};

// How likely the row finds `token` by itself, and its n_top likeliest. `row`: the vocabulary's logits, unchanged.
void score_token(std::span<const float> row, int32_t token, uint32_t n_top, SamplerWorkspace& workspace,
                 TokenLogprobs& out);

}  // namespace tie::engine
