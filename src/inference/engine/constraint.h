// The seam between the engine and a grammar engine. A Constraint is the state of one sample's grammar: it consumes
// tokens and tells which may come next. The engine calls it from one thread at a time: its mask thread, so that masks
// are ready before the logits are. Failing is closed: an error ends the request, it never lifts the constraint.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"

namespace tie::engine {

enum class GrammarState : uint8_t {
  kOpen,      // the mask tells what may follow; end tokens are in it when the text is complete
  kComplete,  // complete, and nothing may follow: the sample ends
};

class Constraint {
 public:
  virtual ~Constraint() = default;
  // A copy in the same state, for another sample of the request.
  virtual Result<std::unique_ptr<Constraint>> clone() const = 0;
  // The token was generated. kInternal when the grammar does not allow it (the mask was not respected).
  virtual Result<void> accept(int32_t token) = 0;
  // Writes one bit per token id, lowest first, 32 a word. Bits beyond the vocabulary are ignored.
  virtual Result<GrammarState> fill_mask(std::span<uint32_t> mask) = 0;
};

class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Canonical grammar text as the `grammar` tensor carries it; empty = any token. kBadRequest with the reason for one
  // that is wrong or over the limits.
  virtual Result<std::unique_ptr<Constraint>> compile(std::string_view grammar) = 0;
};

// Allows every token: the canary's grammar, which runs the constrained path.
std::unique_ptr<Constraint> any_token_constraint();

// Knows the empty grammar only; everything else is kUnsupportedFeature.
class TrivialGrammarCompiler final : public GrammarCompiler {
 public:
  Result<std::unique_ptr<Constraint>> compile(std::string_view grammar) override;
};

}  // namespace tie::engine
