#include "request/cloud_app/constraints/tool_call_splitter.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

size_t skip_space(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kSpace, at), text.size());
}

// The length of the longest end of `text` that is a beginning of `marker`.
size_t half_marker(std::string_view text, std::string_view marker) {
  size_t length = std::min(text.size(), marker.empty() ? 0 : marker.size() - 1);
  while (length > 0 && !marker.starts_with(text.substr(text.size() - length))) --length;
  return length;
}

}  // namespace

ToolCallSplitter::ToolCallSplitter(const ToolSyntax& syntax, std::vector<std::string> names, CallsWanted wanted)
    : syntax_(syntax),
      names_(std::move(names)),
      wanted_(wanted),
      state_(wanted == CallsWanted::kNone         ? State::kText
             : syntax.style == ToolStyle::kObject ? State::kStart
                                                  : State::kText) {}

void ToolCallSplitter::push(std::string_view text, SplitOutput& out) {
  held_ += text;
  while (step(out)) {
  }
}

// True when something was decided and there may be more to decide.
bool ToolCallSplitter::step(SplitOutput& out) {
  switch (state_) {
    case State::kStart: {
      // The answer's very beginning, where a call needs no marker.
      size_t at = skip_space(held_, 0);
      std::string_view rest = std::string_view(held_).substr(at);
      if (rest.empty() || (syntax_.open.starts_with(rest) && rest.size() < syntax_.open.size())) return false;
      if (rest.starts_with(syntax_.open)) at += syntax_.open.size();
      taken_ = held_.substr(0, at);
      held_.erase(0, at);
      state_ = State::kHead;
      return true;
    }
    case State::kText:
      return step_text(out);
    case State::kHead:
      return step_head(out);
    case State::kArguments:
      return step_arguments(out);
    case State::kTail:
      return step_tail(out);
    case State::kBetween:
      return step_between(out);
    case State::kXmlKey:
      return step_xml_key(out);
    case State::kXmlValue:
      return step_xml_value(out);
  }
  return false;
}

bool ToolCallSplitter::step_text(SplitOutput& out) {
  bool marked = wanted_ != CallsWanted::kNone && syntax_.style != ToolStyle::kObject && calls_ < kMaxCallsPerAnswer;
  size_t found = marked ? held_.find(syntax_.open) : std::string::npos;
  size_t sure = found != std::string::npos ? found : held_.size() - (marked ? half_marker(held_, syntax_.open) : 0);
  out.text.append(held_, 0, sure);
  held_.erase(0, sure);
  if (found == std::string::npos) return false;
  taken_ = syntax_.open;
  held_.erase(0, syntax_.open.size());
  state_ = State::kHead;
  return true;
}

// {"name": "…", "arguments": and the arguments' opening brace, with a list's bracket or comma before it.
ToolCallSplitter::Verdict ToolCallSplitter::read_head(size_t& used, std::string& name) const {
  std::string_view text = held_;
  size_t at = 0;
  auto expect = [&](std::string_view wanted) {
    at = skip_space(text, at);
    std::string_view rest = text.substr(at, wanted.size());
    if (!wanted.starts_with(rest)) return Verdict::kNo;
    at += rest.size();
    return rest.size() == wanted.size() ? Verdict::kYes : Verdict::kMore;
  };
  std::string key = "\"" + syntax_.arguments_key + "\"";
  std::vector<std::string_view> before{"{", "\"name\"", ":"}, after{",", key, ":"};
  if (syntax_.style == ToolStyle::kList && taken_ == syntax_.open) before.insert(before.begin(), "[");
  for (std::string_view part : before)
    if (Verdict v = expect(part); v != Verdict::kYes) return v;
  at = skip_space(text, at);
  if (at == text.size()) return Verdict::kMore;
  if (text[at] != '"') return Verdict::kNo;
  size_t end = at + 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return Verdict::kMore;
  auto parsed = nlohmann::json::parse(text.substr(at, end + 1 - at), nullptr, false);
  if (!parsed.is_string()) return Verdict::kNo;
  name = parsed.get<std::string>();
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) return Verdict::kNo;
  at = end + 1;
  for (std::string_view part : after)
    if (Verdict v = expect(part); v != Verdict::kYes) return v;
  at = skip_space(text, at);
  if (at == text.size()) return Verdict::kMore;
  used = at;
  return text[at] == '{' ? Verdict::kYes : Verdict::kNo;
}

// name[ARGS]{ or name[CALL_ID]…[ARGS]{
ToolCallSplitter::Verdict ToolCallSplitter::read_named_head(size_t& used, std::string& name) const {
  const std::string& first = syntax_.id_marker.empty() ? syntax_.arguments_marker : syntax_.id_marker;
  const size_t end = held_.find(first);
  if (end == std::string::npos) {
    const bool may_be = std::any_of(names_.begin(), names_.end(),
                                    [&](const std::string& known) { return (known + first).starts_with(held_); });
    return may_be ? Verdict::kMore : Verdict::kNo;
  }
  name = held_.substr(0, end);
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) return Verdict::kNo;
  size_t at = end + first.size();
  if (!syntax_.id_marker.empty()) {
    for (size_t i = 0; i < kListCallIdChars && at < held_.size(); ++i, ++at)
      if (!std::isalnum(static_cast<unsigned char>(held_[at]))) return Verdict::kNo;
    const std::string_view rest = std::string_view(held_).substr(at, syntax_.arguments_marker.size());
    if (!syntax_.arguments_marker.starts_with(rest)) return Verdict::kNo;
    if (rest.size() < syntax_.arguments_marker.size()) return Verdict::kMore;
    at += rest.size();
  }
  used = skip_space(held_, at);
  if (used == held_.size()) return Verdict::kMore;
  return held_[used] == '{' ? Verdict::kYes : Verdict::kNo;
}

// The function's name between the form's own words, and behind it an argument or the end, so that of two names that
// begin alike the right one is found.
ToolCallSplitter::Verdict ToolCallSplitter::read_xml_head(size_t& used, std::string& name) const {
  const std::string end = syntax_.xml.end + syntax_.close;
  Verdict verdict = Verdict::kNo;
  for (const std::string& known : names_) {
    const std::string head = syntax_.xml.before_name + known + syntax_.xml.after_name;
    if (head.starts_with(held_)) verdict = Verdict::kMore;
    if (!std::string_view(held_).starts_with(head)) continue;
    const std::string_view rest = std::string_view(held_).substr(head.size());
    if (rest.starts_with(syntax_.xml.before_key) || rest.starts_with(end)) {
      used = head.size();
      name = known;
      return Verdict::kYes;
    }
    if (syntax_.xml.before_key.starts_with(rest) || end.starts_with(rest)) verdict = Verdict::kMore;
  }
  return verdict;
}

// The next argument's name, or the call's end. Something else there ends the call without its closing brace: what was
// called is then not sound JSON, and the application hears so.
bool ToolCallSplitter::step_xml_key(SplitOutput& out) {
  const XmlForm& form = syntax_.xml;
  const std::string end = form.end + syntax_.close;
  const std::string_view held = held_;
  if (held.starts_with(end)) {
    fragment(out).arguments += '}';
    held_.erase(0, end.size());
    state_ = State::kBetween;
    return true;
  }
  if (held.starts_with(form.before_key)) {
    const size_t stop = held.find(form.after_key, form.before_key.size());
    if (stop == std::string_view::npos && held.size() <= kMaxCallHeadBytes) return false;
    if (stop != std::string_view::npos && stop <= kMaxCallHeadBytes) {
      const std::string key(held.substr(form.before_key.size(), stop - form.before_key.size()));
      const auto texts = text_parameters_.find(function_);
      in_string_ = texts != text_parameters_.end() && texts->second.contains(key);
      std::string& arguments = fragment(out).arguments;
      arguments += first_key_ ? "\"" : ", \"";
      append_json_text(key, arguments);
      arguments += in_string_ ? "\": \"" : "\": ";
      first_key_ = false;
      held_.erase(0, stop + form.after_key.size());
      state_ = State::kXmlValue;
      return true;
    }
  } else if (end.starts_with(held) || form.before_key.starts_with(held)) {
    return false;
  }
  state_ = State::kText;
  return true;
}

bool ToolCallSplitter::step_xml_value(SplitOutput& out) {
  const std::string& end = syntax_.xml.after_value;
  const size_t found = held_.find(end);
  const size_t sure = found != std::string::npos ? found : held_.size() - half_marker(held_, end);
  if (sure > 0) {
    std::string& arguments = fragment(out).arguments;
    if (in_string_)
      append_json_text(std::string_view(held_).substr(0, sure), arguments);
    else
      arguments.append(held_, 0, sure);
  }
  held_.erase(0, sure);
  if (found == std::string::npos) return false;
  if (in_string_) fragment(out).arguments += '"';
  in_string_ = false;
  held_.erase(0, end.size());
  state_ = State::kXmlKey;
  return true;
}

bool ToolCallSplitter::step_head(SplitOutput& out) {
  size_t used = 0;
  std::string name;
  Verdict verdict = syntax_.style == ToolStyle::kNamed ? read_named_head(used, name)
                    : syntax_.style == ToolStyle::kXml ? read_xml_head(used, name)
                                                       : read_head(used, name);
  // Judged by what has come up to the limit, so that the cuts do not matter.
  if (verdict == Verdict::kMore && held_.size() > kMaxCallHeadBytes) verdict = Verdict::kNo;
  if (verdict == Verdict::kYes && used > kMaxCallHeadBytes) verdict = Verdict::kNo;
  if (verdict == Verdict::kMore) return false;
  if (verdict == Verdict::kNo) return not_a_call(out);
  function_ = name;
  out.calls.push_back({.index = calls_++, .id = new_call_id(syntax_), .name = std::move(name), .arguments = {}});
  held_.erase(0, used);
  taken_.clear();
  if (syntax_.style == ToolStyle::kXml) {
    out.calls.back().arguments = "{";
    first_key_ = true;
    state_ = State::kXmlKey;
    return true;
  }
  depth_ = 0;
  in_string_ = escaped_ = false;
  state_ = State::kArguments;
  return true;
}

// What was taken for a marker is text, and what follows is looked at anew.
bool ToolCallSplitter::not_a_call(SplitOutput& out) {
  out.text += taken_;
  taken_.clear();
  state_ = State::kText;
  return true;
}

CallFragment& ToolCallSplitter::fragment(SplitOutput& out) {
  if (out.calls.empty() || out.calls.back().index != calls_ - 1) out.calls.push_back({.index = calls_ - 1});
  return out.calls.back();
}

bool ToolCallSplitter::step_arguments(SplitOutput& out) {
  size_t at = 0;
  bool closed = false;
  for (; at < held_.size() && !closed; ++at) {
    char c = held_[at];
    if (in_string_) {
      if (escaped_)
        escaped_ = false;
      else if (c == '\\')
        escaped_ = true;
      else if (c == '"')
        in_string_ = false;
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      closed = --depth_ == 0;
    }
  }
  if (at > 0) fragment(out).arguments.append(held_, 0, at);
  held_.erase(0, at);
  if (!closed) return false;
  state_ = syntax_.style == ToolStyle::kNamed ? State::kBetween : State::kTail;
  return true;
}

// The call's own brace and, of tagged calls, the closing marker. Something else there is text.
bool ToolCallSplitter::step_tail(SplitOutput&) {
  size_t at = skip_space(held_, 0);
  if (at == held_.size()) return false;
  if (held_[at] == '}') {
    at = syntax_.close.empty() ? at + 1 : skip_space(held_, at + 1);
    std::string_view rest = std::string_view(held_).substr(at, syntax_.close.size());
    if (syntax_.close.starts_with(rest)) {
      if (rest.size() < syntax_.close.size()) return false;
      at += rest.size();
    }
    held_.erase(0, at);
  }
  state_ = State::kBetween;
  return true;
}

bool ToolCallSplitter::step_between(SplitOutput& out) {
  size_t at = skip_space(held_, 0);
  if (at == held_.size()) return false;
  std::string_view rest = std::string_view(held_).substr(at);
  if (syntax_.style == ToolStyle::kList && (rest[0] == ',' || rest[0] == ']')) {
    bool more = rest[0] == ',' && calls_ < kMaxCallsPerAnswer;
    taken_ = more ? "," : "";
    held_.erase(0, at + 1);
    state_ = more ? State::kHead : State::kText;
    return true;
  }
  if (syntax_.style != ToolStyle::kObject && rest.size() < syntax_.open.size() && syntax_.open.starts_with(rest))
    return false;
  if (syntax_.style != ToolStyle::kObject && rest.starts_with(syntax_.open))
    held_.erase(0, at);  // white space between calls is nobody's
  state_ = State::kText;
  return step_text(out);
}

void ToolCallSplitter::finish(SplitOutput& out) {
  if (state_ == State::kXmlValue && !held_.empty()) {  // cut off inside a value: what looked like its end belongs to it
    if (in_string_)
      append_json_text(held_, fragment(out).arguments);
    else
      fragment(out).arguments += held_;
  }
  bool half_call =
      state_ == State::kHead || state_ == State::kStart || state_ == State::kTail || state_ == State::kBetween;
  bool dropped = state_ == State::kTail || state_ == State::kBetween || (half_call && wanted_ == CallsWanted::kOnly) ||
                 state_ == State::kArguments || state_ == State::kXmlKey || state_ == State::kXmlValue;
  if (!dropped) out.text += taken_ + held_;
  taken_.clear();
  held_.clear();
}

}  // namespace tie::request::app
