// Enforces grammars by llguidance (rust/edge_grammar) behind the engine's constraint seam. The empty grammar needs no
// vocabulary and is answered at once; the vocabulary is prepared at the first other grammar, or beforehand by
// prepare(). Threads: prepare() from any, compile() from the engine's grammar thread, constraints from the engine's
// mask thread.
#pragma once
#include <memory>
#include <mutex>

#include "inference/engine/constraint.h"
#include "text/vocab_image.h"

struct edge_grammar_vocabulary;

namespace tie::runtime_host {

class GrammarEngine final : public engine::GrammarCompiler {
 public:
  // `vocab` (its image) must outlive the object.
  explicit GrammarEngine(const text::Vocab& vocab) : vocab_(vocab) {}

  // Builds the vocabulary's masks structure: a tenth of a second for 50,000 tokens. Errors come back from compile().
  void prepare();

  // kBadRequest with the reason: the text is wrong, asks for what cannot be enforced, or passes a limit.
  Result<std::unique_ptr<engine::Constraint>> compile(std::string_view grammar) override;

 private:
  struct Free {
    void operator()(edge_grammar_vocabulary* vocabulary) const;
  };
  const text::Vocab vocab_;
  std::once_flag prepared_;
  std::shared_ptr<edge_grammar_vocabulary> vocabulary_;
  std::string failure_;
};

}  // namespace tie::runtime_host
