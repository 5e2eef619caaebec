#include "supervision/stateless_proof/leak_forms.h"

#include <algorithm>
#include <set>

namespace tie::proof {
namespace {

constexpr size_t kRunIds = 6, kRunStep = 3;

// The two escapers in use: one leaves characters beyond ASCII, the other writes \uXXXX. Characters of up to three
// bytes.
std::string escaped(const std::string& text, bool ascii_only) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x80 || !ascii_only) {
      out += static_cast<char>(c);
    } else {
      unsigned code = c < 0xe0 ? c & 0x1fu : c & 0x0fu;
      for (int left = c < 0xe0 ? 1 : 2; left > 0 && i + 1 < text.size(); --left)
        code = code << 6 | (static_cast<unsigned char>(text[++i]) & 0x3fu);
      out += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) out += kHex[code >> shift & 0xf];
    }
  }
  return out;
}

template <typename Integer>
LeakForm runs(std::string name, std::span<const int32_t> ids) {
  LeakForm out{std::move(name), {}};
  for (size_t at = 0; at + kRunIds <= ids.size(); at += kRunStep) {
    Bytes pattern;
    for (int32_t id : ids.subspan(at, kRunIds))
      for (size_t byte = 0; byte < sizeof(Integer); ++byte)
        pattern.push_back(static_cast<uint8_t>(static_cast<uint64_t>(id) >> (8 * byte)));
    out.patterns.push_back(std::move(pattern));
  }
  return out;
}

}  // namespace

std::vector<LeakForm> text_forms(const std::vector<std::string>& words) {
  LeakForm plain{"text (UTF-8)", {}}, json{"text (JSON-escaped)", {}};
  for (const std::string& word : words) {
    plain.patterns.push_back(to_bytes(word));
    for (bool ascii_only : {false, true}) json.patterns.push_back(to_bytes(escaped(word, ascii_only)));
  }
  return {std::move(plain), std::move(json)};
}

std::vector<LeakForm> token_forms(std::span<const int32_t> ids) {
  return {runs<int32_t>("token ids (int32)", ids), runs<int64_t>("token ids (int64)", ids)};
}

LeakForm key_form(std::string name, const std::vector<Bytes>& keys) {
  LeakForm out{std::move(name), {}};
  for (const Bytes& key : keys) {
    auto middle = key.begin() + static_cast<ptrdiff_t>(key.size() / 2);
    out.patterns.emplace_back(key.begin(), middle);
    out.patterns.emplace_back(middle, key.end());
  }
  return out;
}

LeakForm row_form(std::string name, const std::vector<Bytes>& rows) {
  LeakForm out{std::move(name), {}};
  for (const Bytes& row : rows)
    if (std::set<uint8_t>(row.begin(), row.end()).size() >= 8) out.patterns.push_back(row);
  return out;
}

}  // namespace tie::proof
