// Marks user text before it enters a chat template, so that no control token of the rendered prompt can come from it.
// A mark is one "breaker" character that occurs nowhere in the input; tokenize_marked() never sees a control token
// across a breaker and removes breakers afterwards. Two strengths:
//   kExact      breaks every control token that the text spells, and every one that could arise where the text meets
//   its surroundings.
//               Text without such places is left as it is, so the template's own comparisons and splits still work.
//   kEverywhere breaks at every character that could begin a control token: nothing a template does to the text
//   (cutting, replacing,
//               changing case, reversing, joining) can assemble one. Templates may take other branches on such text.
// prompt.cc renders with kExact, checks against kEverywhere, and falls back to the latter when they disagree on control
// tokens. Threads: one marker belongs to one prompt. `vocab` must outlive it.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocab_image.h"

namespace tie::text {

class UserTextMarker {
 public:
  enum class Strength { kExact, kEverywhere };

  // `chat_template`: its literal texts that end inside a control token ("<|" before a role) are found here, once.
  UserTextMarker(const Vocab& vocab, std::string_view chat_template);

  // A breaker that occurs in none of the texts; nullopt when all candidates are taken (hostile input).
  static std::optional<std::string> choose_breaker(const std::vector<std::string_view>& texts);

  // The text with breakers. Cost: linear (each start walks at most one control token's length).
  std::string mark(std::string_view text, std::string_view breaker, Strength strength) const;
  // Whether the two strengths would differ on this text.
  bool needs_check(std::string_view text) const;

 private:
  bool begins_control(uint8_t byte) const { return control_first_[byte]; }
  bool walk_reaches(uint32_t node, std::string_view text, size_t trimmed_size, bool partial) const;
  bool dangling_goes_on(std::string_view text, size_t trimmed_size, bool partial) const;

  const Vocab& vocab_;
  std::vector<uint32_t> dangling_;  // nodes reached by the ends of the template's literals
  std::array<bool, 256> control_first_{};
};

}  // namespace tie::text
