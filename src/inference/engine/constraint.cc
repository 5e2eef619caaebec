#include "inference/engine/constraint.h"

#include <algorithm>

namespace tie::engine {
namespace {

class AnyToken final : public Constraint {
 public:
  Result<std::unique_ptr<Constraint>> clone() const override { return any_token_constraint(); }
  Result<void> accept(int32_t) override { return {}; }
  Result<GrammarState> fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), ~0u);
    return GrammarState::kOpen;
  }
};

}  // namespace

std::unique_ptr<Constraint> any_token_constraint() {
  return std::make_unique<AnyToken>();
}

Result<std::unique_ptr<Constraint>> TrivialGrammarCompiler::compile(std::string_view grammar) {
  if (!grammar.empty()) return fail(Code::kUnsupportedFeature, "this runtime enforces no grammar but the empty one");
  return any_token_constraint();
}

}  // namespace tie::engine
