// `tie eval`, `tie perplexity`, `tie generate`: a model file evaluated on this machine, without a node. For checking
// numbers against other engines.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace CLI {
class App;
}

namespace tie::cli {

// Adds the three subcommands. Each prints to standard output and ends the program with CLI::RuntimeError(1) after a
// message on standard error when it fails.
void add_eval_commands(CLI::App& app);

struct PerplexityOptions {
  std::string gguf, text;  // paths
  std::string kernels;     // empty: the best of this CPU
  std::string kv;          // type of the KV cache ("f16", "bf16", "q8"); empty: as a node runs the model
  uint32_t threads = 2;
  uint32_t context = 512;  // tokens of a chunk
};
struct Perplexity {
  double value = 0;
  uint64_t tokens = 0;  // that were scored
  std::string kernels;
};
// The method of llama.cpp's tool: chunks of `context` tokens, each begun with BOS where the model wants one; the second
// half of each chunk is scored. `progress` gets the chunk's number and the value so far. kBadRequest when the text is
// shorter than one chunk.
Result<Perplexity> measure_perplexity(const PerplexityOptions& options,
                                      const std::function<void(size_t, double)>& progress = {});

}  // namespace tie::cli
