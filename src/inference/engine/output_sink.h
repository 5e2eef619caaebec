// Where a request's results go. The host implements it once per request; the engine calls it from its own thread,
// during a step. Calls must return quickly and must not block: they copy what they need and hand it to the host's own
// thread. Order: any number of on_output() (each sample ends with one that has a finish), then exactly one on_end(),
// then the object is released.
#pragma once
#include <cstdint>
#include <span>

#include "base/result.h"
#include "inference/engine/logprobs.h"

namespace tie::engine {

enum class Finish : uint8_t { kNone, kStop, kLength, kGrammarEnd, kCancelled, kError };
const char* finish_name(Finish finish);  // "", "stop", "length", "grammar_end", "cancelled", "error"

// What one sample produced since its last output. The spans are valid during the call.
struct Output {
  uint32_t sample = 0;
  std::span<const int32_t> tokens;          // end tokens are not among them
  std::span<const TokenLogprobs> logprobs;  // one per token when the request asked for them, else empty
  // Of the first sample alone, before its first token: those of the prompt's next tokens, its second one first.
  std::span<const TokenLogprobs> prompt_logprobs;
  uint32_t stop_trim_bytes =
      0;  // with Finish::kStop: the last so many bytes of `tokens`' text belong to the stop string or follow it
  Finish finish = Finish::kNone;
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t prefix_tokens = 0;      // of the prompt, taken from the system-prompt prefix cache
  uint32_t imported_tokens = 0;    // of the prompt, behind the prefix, taken from an earlier turn
  uint32_t exported_tokens = 0;    // of the first sample, being copied out
  bool import_refused = false;     // there was an import, and none of it was used
  uint32_t completion_tokens = 0;  // all samples; counts end tokens and tokens cut off by a stop string, too
  uint32_t drafted_tokens = 0;
  uint32_t accepted_draft_tokens = 0;
  uint64_t queue_us = 0;        // submission to first forward pass
  uint64_t first_token_us = 0;  // submission to first token; 0 when there was none
};

class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_output(const Output& output) = 0;
  // error: why the request ended before its samples did (kDeadline, kCancelled, kInternal, …); null when all went well.
  virtual void on_end(const Usage& usage, const Error* error) = 0;
  // False pauses the request until it is true again: its consumer is too far behind. Asked once per step.
  virtual bool has_room() const { return true; }
};

}  // namespace tie::engine
