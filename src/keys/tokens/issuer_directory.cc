#include "keys/tokens/issuer_directory.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "keys/tokens/token.h"

namespace tie::tokens {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

Result<IssuerKey> parse_key(const nlohmann::json& row) {
  TIE_TRY(Bytes spki, from_base64url(row.value("token-key", std::string())));
  TIE_TRY(BlindRsaPublicKey key, BlindRsaPublicKey::from_spki(spki));
  const crypto::Digest id = key.key_id();
  return IssuerKey{std::move(key), id, row.value("not-before", int64_t{0}), row.value("not-after", kNoEnd)};
}

}  // namespace

std::string base64url(ByteView bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t have = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < have ? bytes[i + k] : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= have ? kAlphabet[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

Result<Bytes> from_base64url(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  Bytes out;
  uint32_t group = 0;
  size_t bits = 0;
  for (const char c : text) {
    const size_t value = kAlphabet.find(c);
    if (value == std::string_view::npos) return fail(Code::kBadRequest, "not base64url");
    group = group << 6 | static_cast<uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out.push_back(static_cast<uint8_t>(group >> bits));
    group &= (1u << bits) - 1;
  }
  if (bits >= 6 || group != 0) return fail(Code::kBadRequest, "not base64url");
  return out;
}

std::string render_directory(const Directory& directory) {
  nlohmann::json keys = nlohmann::json::array();
  for (const IssuerKey& key : directory.keys)
    keys.push_back({{"token-type", kTokenType},
                    {"token-key", base64url(key.key.spki())},
                    {"not-before", key.not_before_s},
                    {"not-after", key.not_after_s}});
  return nlohmann::json{{"issuer-request-uri", directory.request_uri}, {"token-keys", keys}}.dump(1) + "\n";
}

Result<Directory> parse_directory(std::string_view text) {
  const auto corrupt = [] { return fail(Code::kCorrupt, "the issuer's directory cannot be understood"); };
  if (text.size() > kMaxDirectoryBytes) return corrupt();
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("token-keys") || !json["token-keys"].is_array()) return corrupt();
  Directory out;
  try {
    out.request_uri = json.value("issuer-request-uri", std::string());
    for (const nlohmann::json& row : json["token-keys"]) {
      if (!row.is_object() || row.value("token-type", 0) != kTokenType || out.keys.size() >= kMaxIssuerKeys) continue;
      auto key = parse_key(row);
      if (!key) return corrupt();
      out.keys.push_back(std::move(*key));
    }
  } catch (const nlohmann::json::exception&) {
    return corrupt();
  }
  if (out.request_uri.empty()) return corrupt();
  if (out.keys.empty()) return fail(Code::kNotFound, "the issuer has no key for tokens of type 2");
  return out;
}

}  // namespace tie::tokens
