// Splits a model's answer, as it comes, into text and tool calls. The result does not depend on where the input is cut.
// Only what may still become a marker or the head of a call is held back; arguments go out as they come. What only
// looked like a call is text in the end. One object per sample, one thread. Limits: kMaxCallHeadBytes,
// kMaxCallsPerAnswer (limits.h).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "request/cloud_app/constraints/constraints.h"
#include "request/cloud_app/constraints/tool_syntax.h"

namespace tie::request::app {

struct CallFragment {
  int index = 0;
  std::string id, name;  // in a call's first fragment only
  std::string arguments;
};

struct SplitOutput {
  std::string text;
  std::vector<CallFragment> calls;
};

class ToolCallSplitter {
 public:
  // names: of the functions that may be called. kOnly: half a call at the end is dropped rather than shown as text.
  ToolCallSplitter(const ToolSyntax& syntax, std::vector<std::string> names, CallsWanted wanted);
  // For kXml: which parameters are raw text.
  void set_text_parameters(TextParameters parameters) { text_parameters_ = std::move(parameters); }

  void push(std::string_view text, SplitOutput& out);
  // The answer is over: what was held back comes out.
  void finish(SplitOutput& out);
  int calls() const { return calls_; }

 private:
  enum class State { kStart, kText, kHead, kArguments, kTail, kBetween, kXmlKey, kXmlValue };
  enum class Verdict { kMore, kYes, kNo };
  bool step(SplitOutput& out);
  bool step_text(SplitOutput& out);
  bool step_head(SplitOutput& out);
  bool step_arguments(SplitOutput& out);
  bool step_tail(SplitOutput& out);
  bool step_between(SplitOutput& out);
  Verdict read_head(size_t& used, std::string& name) const;
  Verdict read_named_head(size_t& used, std::string& name) const;
  Verdict read_xml_head(size_t& used, std::string& name) const;
  bool step_xml_key(SplitOutput& out);
  bool step_xml_value(SplitOutput& out);
  bool not_a_call(SplitOutput& out);
  CallFragment& fragment(SplitOutput& out);

  ToolSyntax syntax_;
  std::vector<std::string> names_;
  CallsWanted wanted_;
  State state_;
  std::string held_;   // not yet decided
  std::string taken_;  // decided only so far as a call follows: given back as text when none does
  int calls_ = 0;
  bool in_string_ = false, escaped_ = false;
  int depth_ = 0;
  TextParameters text_parameters_;
  std::string function_;   // of the call at hand
  bool first_key_ = true;  // of its arguments
};

}  // namespace tie::request::app
