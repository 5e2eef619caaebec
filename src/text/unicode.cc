#include "text/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>

namespace tie::text {
namespace {

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

uint16_t compute_classes(uint32_t c) {
  uint16_t out = 0;
  if (is_white_space(c)) out |= kSpace;
  if (c == '\r' || c == '\n') out |= kNewline;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return out | kLetter | kUpperish | kCased;
    case UTF8PROC_CATEGORY_LL:
      return out | kLetter | kLowerish | kCased;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return out | kLetter | kUpperish | kLowerish;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return out | kMark | kUpperish | kLowerish;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return out | kNumber | kWordNumber;
    case UTF8PROC_CATEGORY_NO:
      return out | kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return out | kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return out | kSymbol;
    default:
      return out;
  }
}

bool continues(unsigned char byte) {
  return (byte & 0xC0) == 0x80;
}

// Bytes that a sequence starting with `lead` needs, and the allowed range of its second byte; 0 for a byte that starts
// none.
struct Lead {
  uint32_t bytes;
  unsigned char low, high;
};
Lead lead_of(unsigned char c) {
  if (c < 0x80) return {1, 0, 0};
  if (c >= 0xC2 && c <= 0xDF) return {2, 0x80, 0xBF};
  if (c == 0xE0) return {3, 0xA0, 0xBF};
  if (c == 0xED) return {3, 0x80, 0x9F};
  if (c >= 0xE1 && c <= 0xEF) return {3, 0x80, 0xBF};
  if (c == 0xF0) return {4, 0x90, 0xBF};
  if (c >= 0xF1 && c <= 0xF3) return {4, 0x80, 0xBF};
  if (c == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Decoded decode_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const Lead lead = lead_of(p[0]);
  if (lead.bytes == 1) return {p[0], 1, true};
  if (lead.bytes == 0 || text.size() < lead.bytes || p[1] < lead.low || p[1] > lead.high) return {0xFFFD, 1, false};
  uint32_t code = p[0] & (0x7Fu >> lead.bytes);
  for (uint32_t i = 1; i < lead.bytes; ++i) {
    if (!continues(p[i])) return {0xFFFD, 1, false};
    code = code << 6 | (p[i] & 0x3F);
  }
  return {code, lead.bytes, true};
}

void append_utf8(std::string& out, uint32_t code) {
  unsigned char buffer[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), buffer);
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(n));
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    const Decoded d = decode_utf8(text);
    if (!d.valid) return false;
    text.remove_prefix(d.bytes);
  }
  return true;
}

size_t whole_utf8_prefix(std::string_view text, bool& open) {
  open = false;
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if (continues(c)) continue;
    const Lead lead = lead_of(c);
    if (lead.bytes <= back) return text.size();
    if (back >= 2) {
      const auto second = static_cast<unsigned char>(text[text.size() - back + 1]);
      if (second < lead.low || second > lead.high) return text.size();
    }
    open = true;
    return text.size() - back;
  }
  return text.size();
}

uint16_t char_classes(uint32_t code) {
  static const auto latin = [] {
    std::array<uint16_t, 256> table{};
    for (uint32_t c = 0; c < table.size(); ++c) table[c] = compute_classes(c);
    return table;
  }();
  return code < latin.size() ? latin[code] : compute_classes(code);
}

bool is_han(uint32_t c) {
  static constexpr uint32_t kRanges[][2] = {
      {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},   {0x3007, 0x3007},
      {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},
      {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3}, {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739},
      {0x2B740, 0x2B81D}, {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2F800, 0x2FA1D}, {0x30000, 0x3134A},
      {0x31350, 0x323AF}};
  for (const auto& range : kRanges)
    if (c >= range[0] && c <= range[1]) return true;
  return false;
}

void decode_all(std::string_view text, std::vector<Char>& out) {
  out.clear();
  out.reserve(text.size() + 1);
  for (size_t at = 0; at < text.size();) {
    const Decoded d = decode_utf8(text.substr(at));
    out.push_back({d.code, static_cast<uint32_t>(at), char_classes(d.code)});
    at += d.bytes;
  }
  out.push_back({0, static_cast<uint32_t>(text.size()), 0});
}

std::string normalize(std::string_view text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const auto n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &result, static_cast<utf8proc_option_t>(options));
  if (n < 0) return std::string(text);
  std::string out(reinterpret_cast<const char*>(result), static_cast<size_t>(n));
  std::free(result);
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Decoded d = decode_utf8(text);
    if (d.valid)
      append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(d.code))));
    else
      out.push_back(text[0]);
    text.remove_prefix(d.bytes);
  }
  return out;
}

}  // namespace tie::text
