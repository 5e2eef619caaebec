#include "inference/hosts/server/grammar_engine.h"

#include <vector>

#include "edge_grammar.h"

namespace tie::runtime_host {
namespace {

Error refusal(int code, const edge_grammar_error& error) {
  if (code == EDGE_GRAMMAR_INTERNAL) return {Code::kInternal, error.text};
  return {Code::kBadRequest, std::string("grammar: ") + error.text};
}

class Grammar final : public engine::Constraint {
 public:
  Grammar(edge_grammar* grammar, std::shared_ptr<edge_grammar_vocabulary> vocabulary)
      : grammar_(grammar), vocabulary_(std::move(vocabulary)) {}
  ~Grammar() override { edge_grammar_free(grammar_); }
  Grammar(const Grammar&) = delete;

  Result<std::unique_ptr<engine::Constraint>> clone() const override {
    edge_grammar* copy = nullptr;
    if (edge_grammar_fork(grammar_, &copy) != EDGE_GRAMMAR_OK)
      return fail(Code::kInternal, "the grammar cannot be copied");
    return std::make_unique<Grammar>(copy, vocabulary_);
  }

  Result<void> accept(int32_t token) override {
    edge_grammar_error error{};
    if (edge_grammar_accept(grammar_, static_cast<uint32_t>(token), &error) != EDGE_GRAMMAR_OK)
      return fail(Code::kInternal, error.text);
    return {};
  }

  Result<engine::GrammarState> fill_mask(std::span<uint32_t> mask) override {
    edge_grammar_error error{};
    uint8_t complete = 0;
    int code = edge_grammar_fill_mask(grammar_, mask.data(), mask.size(), &complete, &error);
    if (code != EDGE_GRAMMAR_OK) return std::unexpected(refusal(code, error));
    return complete ? engine::GrammarState::kComplete : engine::GrammarState::kOpen;
  }

 private:
  edge_grammar* grammar_;
  std::shared_ptr<edge_grammar_vocabulary> vocabulary_;  // outlives the grammar
};

}  // namespace

void GrammarEngine::Free::operator()(edge_grammar_vocabulary* vocabulary) const {
  edge_grammar_vocabulary_free(vocabulary);
}

void GrammarEngine::prepare() {
  std::call_once(prepared_, [this] {
    std::string bytes;
    std::vector<uint32_t> offsets{0};
    std::vector<uint8_t> control;
    for (uint32_t i = 0; i < vocab_.size(); ++i) {
      auto id = static_cast<text::TokenId>(i);
      bytes.append(as_text(vocab_.token_bytes(id)));
      offsets.push_back(static_cast<uint32_t>(bytes.size()));
      control.push_back(vocab_.is_control(id) || vocab_.is_end_of_generation(id) ? 1 : 0);
    }
    edge_grammar_vocabulary* built = nullptr;
    edge_grammar_error error{};
    auto ends = vocab_.end_of_generation();
    int code = edge_grammar_vocabulary_new(reinterpret_cast<const uint8_t*>(bytes.data()), offsets.data(),
                                           control.data(), control.size(), ends.data(), ends.size(), &built, &error);
    if (code == EDGE_GRAMMAR_OK)
      vocabulary_.reset(built, Free{});
    else
      failure_ = error.text;
  });
}

Result<std::unique_ptr<engine::Constraint>> GrammarEngine::compile(std::string_view grammar) {
  if (grammar.empty()) return engine::any_token_constraint();
  prepare();
  if (!vocabulary_)
    return fail(Code::kUnsupportedFeature, "grammars cannot be enforced with this vocabulary: " + failure_);
  edge_grammar* compiled = nullptr;
  edge_grammar_error error{};
  int code = edge_grammar_compile(vocabulary_.get(), reinterpret_cast<const uint8_t*>(grammar.data()), grammar.size(),
                                  &compiled, &error);
  if (code != EDGE_GRAMMAR_OK) return std::unexpected(refusal(code, error));
  return std::make_unique<Grammar>(compiled, vocabulary_);
}

}  // namespace tie::runtime_host
