// A request whose content is known in every form it takes on a node: its words, its token ids as the node's template
// and tokenizer make them, and the keys and values that the model computes from it. For `tie node prove-stateless`.
// Reads the model's files; seconds of computing for a small model. One thread.
#pragma once
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace tie::v1 {
class InferenceRequest;
}

namespace tie::cli {

struct CanaryContent {
  std::vector<std::string> words;     // random; each holds a quote and a character beyond ASCII
  std::string text;                   // the user's message
  std::vector<int32_t> ids;           // of the words alone, from the middle of the prompt
  std::vector<Bytes> k_rows, v_rows;  // as they lie in the runtime's cache, of tokens of the words alone
  size_t prompt_tokens = 0;
};

// kNotFound, kCorrupt: the model's files in `assets`. kContextExceeded: a context too short for a canary.
Result<CanaryContent> make_canary(const std::string& assets, const std::string& model);
// Asks `model` for `max_tokens` (0: until its context is full), with fresh turn keys, which are added to `turn_keys`.
v1::InferenceRequest canary_request(const CanaryContent& canary, const std::string& model, int max_tokens,
                                    std::vector<Bytes>& turn_keys);

}  // namespace tie::cli
