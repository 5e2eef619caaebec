#include "text/user_text_marker.h"

#include <algorithm>

#include "text/unicode.h"

namespace tie::text {
namespace {

constexpr size_t kMaxDangling = 1024;
constexpr size_t kMaxControlBytes = 256;  // longest end of a literal that is looked at

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// The literal texts of a template: what stands outside tags, and quoted strings inside them, escapes undone as far as
// they matter.
std::vector<std::string> literals_of(std::string_view source) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < source.size()) {
    size_t open = at;
    while (open + 1 < source.size() &&
           !(source[open] == '{' && (source[open + 1] == '{' || source[open + 1] == '%' || source[open + 1] == '#')))
      ++open;
    if (open + 1 >= source.size()) open = source.size();
    out.emplace_back(source.substr(at, open - at));
    if (open >= source.size()) break;
    const char closer = source[open + 1] == '{' ? '}' : source[open + 1];
    at = open + 2;
    while (at + 1 < source.size() && !(source[at] == closer && source[at + 1] == '}')) {
      const char quote = source[at];
      if (closer == '#' || (quote != '"' && quote != '\'')) {
        ++at;
        continue;
      }
      std::string literal;
      for (++at; at < source.size() && source[at] != quote; ++at) {
        if (source[at] == '\\' && at + 1 < source.size()) ++at;
        literal.push_back(source[at]);
      }
      if (at < source.size()) ++at;
      out.push_back(std::move(literal));
    }
    at = std::min(source.size(), at + 2);
  }
  return out;
}

}  // namespace

UserTextMarker::UserTextMarker(const Vocab& vocab, std::string_view chat_template) : vocab_(vocab) {
  for (uint32_t byte = 0; byte < 256; ++byte) control_first_[byte] = vocab.starts_added(static_cast<uint8_t>(byte));
  for (const std::string& literal : literals_of(chat_template)) {
    const size_t longest = std::min(literal.size(), kMaxControlBytes);
    for (size_t length = 1; length <= longest && dangling_.size() < kMaxDangling; ++length) {
      uint32_t node = 0;
      bool alive = true;
      for (size_t at = literal.size() - length; alive && at < literal.size(); ++at) {
        const auto next = vocab.step(node, static_cast<uint8_t>(literal[at]));
        alive = next.has_value();
        if (alive) node = *next;
      }
      if (alive && std::find(dangling_.begin(), dangling_.end(), node) == dangling_.end()) dangling_.push_back(node);
    }
  }
}

std::optional<std::string> UserTextMarker::choose_breaker(const std::vector<std::string_view>& texts) {
  // U+FDD0..U+FDEF: noncharacters, which proper text does not hold. In UTF-8: EF B7 90..AF.
  std::array<bool, 32> taken{};
  for (std::string_view text : texts)
    for (size_t at = text.find("\xEF\xB7"); at != std::string_view::npos; at = text.find("\xEF\xB7", at + 2)) {
      const auto last = at + 2 < text.size() ? static_cast<uint8_t>(text[at + 2]) : uint8_t{0};
      if (last >= 0x90 && last <= 0xAF) taken[last - 0x90] = true;
    }
  for (size_t i = 0; i < taken.size(); ++i)
    if (!taken[i]) return std::string("\xEF\xB7") + static_cast<char>(0x90 + i);
  return std::nullopt;
}

// Whether walking on from `node` along the text completes a control token; with `partial`, also whether the text (or
// the text without its trailing white space, which templates like to trim) ends while one could still be completed.
bool UserTextMarker::walk_reaches(uint32_t node, std::string_view text, size_t trimmed_size, bool partial) const {
  for (size_t at = 0; at < text.size() && at < kMaxControlBytes; ++at) {
    if (partial && at == trimmed_size && at > 0) return true;
    const auto next = vocab_.step(node, static_cast<uint8_t>(text[at]));
    if (!next) return false;
    node = *next;
    if (vocab_.ends_control(node)) return true;
  }
  return partial;
}

bool UserTextMarker::dangling_goes_on(std::string_view text, size_t trimmed_size, bool partial) const {
  return std::any_of(dangling_.begin(), dangling_.end(),
                     [&](uint32_t node) { return walk_reaches(node, text, trimmed_size, partial); });
}

std::string UserTextMarker::mark(std::string_view text, std::string_view breaker, Strength strength) const {
  size_t lead = 0;
  while (lead < text.size() && is_space(text[lead])) ++lead;
  size_t trimmed = text.size();
  while (trimmed > lead && is_space(text[trimmed - 1])) --trimmed;
  const bool everywhere = strength == Strength::kEverywhere;
  std::string out;
  out.reserve(text.size() + 16);
  size_t copied = 0;  // everything before it is in `out`
  const auto break_at = [&](size_t at) {
    out.append(text.substr(copied, at - copied)).append(breaker);
    copied = at;
  };
  for (size_t at = 0; at < text.size(); ++at) {
    const bool at_edge = at == 0 || at == lead;
    const std::string_view rest = text.substr(at);
    const size_t rest_trimmed = trimmed > at ? trimmed - at : 0;
    if (!dangling_.empty() && (at_edge || everywhere) && dangling_goes_on(rest, rest_trimmed, at_edge)) break_at(at);
    if (!begins_control(static_cast<uint8_t>(text[at]))) continue;
    if (everywhere) {
      break_at(at);
      break_at(at + decode_utf8(rest).bytes);
    } else if (walk_reaches(0, rest, rest_trimmed, true)) {
      break_at(at + decode_utf8(rest).bytes);
    }
  }
  return out.append(text.substr(copied));
}

bool UserTextMarker::needs_check(std::string_view text) const {
  if (!dangling_.empty()) return true;
  return std::any_of(text.begin(), text.end(), [this](char c) { return begins_control(static_cast<uint8_t>(c)); });
}

}  // namespace tie::text
