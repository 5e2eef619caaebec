// One request inside the engine and its samples. Built whole, with all its memory, on the thread that submits it;
// afterwards used by the engine's thread only, but for the cancel flag. Secrets: prompt, output, stop strings and
// grammar of a user; overwritten when the request ends.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference/engine/draft.h"
#include "inference/engine/kv_transfer.h"
#include "inference/engine/mask_worker.h"
#include "inference/engine/output_sink.h"
#include "inference/engine/sampler.h"
#include "inference/engine/stop_matcher.h"
#include "inference/engine/token_table.h"

namespace tie::engine {

inline constexpr uint32_t kDefaultPriority = 5;  // 1 most urgent … 9 least, as Triton counts
inline constexpr uint32_t kLowestPriority = 9;

// What the host asks for.
struct RequestSpec {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  std::optional<std::string> grammar;  // absent: unconstrained; empty: the trivial grammar through the constrained path
  uint32_t deadline_ms = 0;            // from submission; 0 = the engine's longest
  uint32_t priority = 0;               // 0 = kDefaultPriority
  std::shared_ptr<OutputSink> sink;
  std::shared_ptr<KvImport> kv_import;  // null: nothing is taken over; else let go of once it has been read
  bool import_refused = false;          // there was to be an import, but the host had to refuse it
  std::shared_ptr<KvExport> kv_export;  // null: nothing is kept; gets the first sample's blocks when it ends well
};

// The host's handle: cancelling works from any thread at any time, also after the request ended.
struct RequestHandle {
  uint64_t id = 0;
  std::atomic<bool> cancelled{false};
};

struct Request;

enum class Phase : uint8_t { kUnborn, kRunning, kPreempted, kEnded };

// One sample: its tokens, its KV blocks, what it draws with and what it has not yet sent.
class Sequence {
 public:
  Sequence(Request& request, uint32_t sample, uint64_t seed, uint32_t limit, const TokenTable& table);
  ~Sequence();
  Sequence(const Sequence&) = delete;

  uint32_t remaining() const {
    return static_cast<uint32_t>(tokens.size()) - n_cached;
  }  // tokens not in the KV cache yet; 1 while decoding
  uint32_t n_output() const { return static_cast<uint32_t>(tokens.size()) - n_prompt; }
  bool below_min_tokens(uint32_t ahead = 0) const;  // after so many more tokens
  // Log-probabilities of prompt tokens are wanted and not all delivered: then nothing of the prompt may come from a
  // cache, since only computed rows have logits.
  bool scores_prompt() const;

  // Takes the drawn token: counts it, looks for stops, decides what may be sent. Sets finish when the sample is over.
  void commit(int32_t token, const TokenLogprobs* logprobs);
  // Ends the sample for another reason than a token; with kCancelled and kError what is held back is dropped.
  void end(Finish reason);
  // What may be sent now, and its removal once it has been.
  Output output() const;
  bool has_output() const { return n_sendable_ > 0 || finish != Finish::kNone; }
  void sent();

  Request& request;
  const uint32_t sample;
  const uint32_t n_prompt;
  const uint32_t limit;         // most output tokens
  std::vector<int32_t> tokens;  // prompt, then output
  uint32_t n_cached = 0;
  uint32_t n_lent = 0;    // of n_cached at its start: from the system-prompt prefix cache
  uint32_t n_scored = 0;  // rows of the prompt whose logits have been looked at, each for the token behind it
  std::vector<TokenLogprobs> prompt_logprobs;  // of this step's rows
  bool importing = false;                      // its beginning is being copied in: no rows until that has ended
  std::vector<uint32_t> blocks;
  Phase phase = Phase::kUnborn;
  uint64_t stamp = 0;  // order of admission; the oldest is served and kept first
  Finish finish = Finish::kNone;
  std::optional<Error> error;
  Sampler sampler;
  Drafter drafter;
  uint32_t accepted_in_step = 0;  // draft tokens
  std::unique_ptr<MaskSlot> grammar;

 private:
  bool is_stop_id(int32_t token) const;
  void stage(int32_t token, const TokenLogprobs* logprobs);
  void cut_at_match();

  const TokenTable& table_;
  StopMatcher stops_;
  uint64_t text_bytes_ = 0;
  // Drawn but not sent, oldest first; the first n_sendable_ may go.
  std::vector<int32_t> staged_;
  std::vector<uint64_t> staged_start_;  // offset of each staged token's text
  std::vector<TokenLogprobs> staged_logprobs_;
  size_t n_sendable_ = 0;
  uint32_t trim_bytes_ = 0;
};

struct Request {
  Request(RequestSpec spec, uint64_t id, uint32_t context, const TokenTable& table);
  ~Request();

  RequestSpec spec;
  std::shared_ptr<RequestHandle> handle;
  uint64_t seed = 0;
  std::vector<std::unique_ptr<Sequence>> samples;
  uint32_t unfinished = 0;
  bool admitted = false;
  bool forked = false;  // the other samples have started from the first one's prompt
  int64_t submitted_us = 0, deadline_us = 0;
  Usage usage;

  bool grammar_ready() const;  // compiled, or none
};

}  // namespace tie::engine
