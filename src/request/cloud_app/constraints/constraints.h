// Lowers tools, tool_choice and response_format to the grammar that the runtime enforces (rust/include/edge_grammar.h),
// and checks that it compiles before the runtime is asked. The runtime compiles it again and has the last word.
// Untrusted input. Nothing is ever ignored: what cannot be enforced is refused with the parameter's name. Limits:
// limits.h. Called by app.cc, one thread.
#pragma once
#include <memory>
#include <string>

#include "inference.pb.h"
#include "request/cloud_app/constraints/tool_syntax.h"
#include "request/cloud_app/refusal.h"

struct edge_grammar_vocabulary;

namespace tie::request::app {

enum class CallsWanted { kNone, kPossible, kOnly };

struct Constraint {
  std::string grammar;  // empty: any text
  std::string param;    // whose fault it is when the runtime refuses the grammar
  CallsWanted calls = CallsWanted::kNone;
  // The same with markers that are control tokens spelled as text: for a vocabulary that has no control tokens.
  std::string checkable;
};

// kBadRequest or kUnsupportedFeature with the parameter. The grammar is not compiled yet.
Checked<Constraint> lower_constraint(const v1::InferenceRequest& request, const ToolSyntax& syntax);

// A schema alone, as it is lowered for response_format.
Checked<std::string> schema_grammar(std::string_view schema_json, const std::string& param);

// Compiles grammars over a vocabulary of bytes, to refuse the wrong ones early.
class GrammarChecker {
 public:
  static Result<GrammarChecker> create();
  // kBadRequest with the compiler's words.
  Result<void> check(std::string_view grammar) const;
  // For tests and tools: whether the whole text is in the grammar's language.
  Result<bool> matches(std::string_view grammar, std::string_view text) const;

 private:
  struct Free {
    void operator()(edge_grammar_vocabulary* vocabulary) const;
  };
  std::unique_ptr<edge_grammar_vocabulary, Free> vocabulary_;
};

// Checks the lowered constraint; a refusal names the tool whose schema is at fault.
Checked<void> check_constraint(const v1::InferenceRequest& request, const Constraint& constraint);

}  // namespace tie::request::app
