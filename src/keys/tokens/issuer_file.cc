#include "keys/tokens/issuer_file.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "keys/tokens/token.h"

namespace tie::tokens {
namespace {

constexpr std::string_view kFirstLine = "tie token issuer 1";

std::string_view take_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

std::optional<int64_t> seconds(std::string_view word) {
  int64_t value = 0;
  const auto read = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || read.ec != std::errc() || read.ptr != word.data() + word.size() || value < 0) return std::nullopt;
  return value;
}

Result<IssuerKey> parse_key(std::string_view line) {
  TIE_TRY(Bytes spki, from_hex(take_word(line)));
  TIE_TRY(BlindRsaPublicKey key, BlindRsaPublicKey::from_spki(spki));
  const auto begin = seconds(take_word(line)), end = seconds(take_word(line));
  if (!begin || !end || *begin >= *end || !line.empty())
    return fail(Code::kBadRequest, "a key is followed by the two times between which it counts");
  const crypto::Digest id = key.key_id();
  return IssuerKey{std::move(key), id, *begin, *end};
}

// The number that count at once is largest at some key's beginning.
bool too_many_at_once(const std::vector<IssuerKey>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const IssuerKey& at) {
    return std::count_if(keys.begin(), keys.end(), [&](const IssuerKey& key) {
             return key.counts_at(at.not_before_s);
           }) > static_cast<ptrdiff_t>(kMaxKeysAtOnce);
  });
}

std::unexpected<Error> at_line(size_t number, const std::string& what) {
  return fail(Code::kBadRequest, "token issuer file, line " + std::to_string(number) + ": " + what);
}

}  // namespace

bool is_issuer_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == ':';
  });
}

Result<IssuerFile> parse_issuer_file(std::string_view text) {
  if (text.size() > kMaxIssuerFileBytes) return fail(Code::kTooLarge, "the token issuer file is too large");
  IssuerFile out;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (number == 1) {
      if (line != kFirstLine) return at_line(number, "must be '" + std::string(kFirstLine) + "'");
      continue;
    }
    if (line.empty() || line[0] == '#') continue;
    const std::string_view word = take_word(line);
    if (word == "name" && out.name.empty() && is_issuer_name(line)) {
      out.name = line;
    } else if (word == "key" && out.keys.size() < kMaxIssuerKeys) {
      auto key = parse_key(line);
      if (!key) return at_line(number, key.error().message);
      const bool twice = std::any_of(out.keys.begin(), out.keys.end(), [&](const auto& k) { return k.id == key->id; });
      if (twice) return at_line(number, "this key was given before");
      out.keys.push_back(std::move(*key));
    } else {
      return at_line(number, "expected one name and at most " + std::to_string(kMaxIssuerKeys) + " keys");
    }
  }
  if (out.name.empty() || out.keys.empty())
    return fail(Code::kBadRequest, "the token issuer file has no name or no key");
  if (too_many_at_once(out.keys))
    return fail(Code::kBadRequest, "more than " + std::to_string(kMaxKeysAtOnce) +
                                       " keys count at the same time: users could be told apart by the key");
  return out;
}

std::string render(const IssuerFile& file) {
  std::string out = std::string(kFirstLine) + "\nname " + file.name + "\n";
  for (const IssuerKey& key : file.keys)
    out += "key " + to_hex(key.key.spki()) + " " + std::to_string(key.not_before_s) + " " +
           std::to_string(key.not_after_s) + "\n";
  return out;
}

}  // namespace tie::tokens
