#include "keys/token_issuer/credentials.h"

#include <algorithm>
#include <charconv>
#include <sstream>

namespace tie::issuer {
namespace {

constexpr double kHourMs = 3600.0 * 1000;

Result<Credential> parse_line(const std::string& line) {
  std::istringstream words(line);
  std::string keyword, digest, number, more;
  Credential out;
  words >> keyword >> out.name >> digest >> number;
  uint32_t per_hour = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), per_hour);
  const bool formed = keyword == "credential" && is_credential_name(out.name) && !(words >> more) &&
                      read.ec == std::errc() && read.ptr == number.data() + number.size() && per_hour > 0 &&
                      per_hour <= kMaxTokensPerHour;
  if (!formed) return fail(Code::kBadRequest, "must be: credential NAME SHA256 TOKENS-PER-HOUR");
  TIE_TRY(Bytes bytes, from_hex(digest));
  TIE_TRY(out.key_sha256, crypto::digest_from(bytes, "the digest of an API key"));
  out.tokens_per_hour = per_hour;
  return out;
}

}  // namespace

bool is_credential_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '@';
  });
}

Result<std::vector<Credential>> parse_credentials(std::string_view text) {
  if (text.size() > kMaxCredentialsBytes) return fail(Code::kTooLarge, "the credentials file is too large");
  std::vector<Credential> out;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    auto credential = parse_line(line);
    if (!credential)
      return fail(Code::kBadRequest, "credentials, line " + std::to_string(number) + ": " + credential.error().message);
    if (out.size() >= kMaxCredentials) return fail(Code::kTooLarge, "too many credentials");
    out.push_back(std::move(*credential));
  }
  return out;
}

std::string render(const Credential& credential) {
  return "credential " + credential.name + " " + to_hex(credential.key_sha256) + " " +
         std::to_string(credential.tokens_per_hour) + "\n";
}

Allowance::Allowance(std::vector<Credential> credentials) {
  replace(std::move(credentials));
}

void Allowance::replace(std::vector<Credential> credentials) {
  std::lock_guard lock(mutex_);
  std::vector<Bucket> fresh;
  for (Credential& credential : credentials) {
    Bucket bucket{credential, double(credential.tokens_per_hour)};
    for (const Bucket& known : buckets_)
      if (known.credential.key_sha256 == credential.key_sha256)
        bucket = {credential, std::min(known.tokens, bucket.tokens), known.filled_at_ms};
    fresh.push_back(std::move(bucket));
  }
  buckets_ = std::move(fresh);
}

Result<void> Allowance::take(std::string_view api_key, int64_t now_ms) {
  const crypto::Digest digest = crypto::sha256(as_bytes(api_key));
  std::lock_guard lock(mutex_);
  Bucket* found = nullptr;
  for (Bucket& bucket : buckets_)
    if (equal_constant_time(bucket.credential.key_sha256, digest)) found = &bucket;
  if (found == nullptr) return fail(Code::kUnauthenticated, "this API key has no tokens here");
  const double full = found->credential.tokens_per_hour;
  if (found->filled_at_ms != 0)
    found->tokens = std::min(full, found->tokens + double(now_ms - found->filled_at_ms) * full / kHourMs);
  found->filled_at_ms = now_ms;
  if (found->tokens < 1) return fail(Code::kOverloaded, "this API key has had its tokens of the last hour");
  found->tokens -= 1;
  return {};
}

}  // namespace tie::issuer
