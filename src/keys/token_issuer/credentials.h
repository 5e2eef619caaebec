// Who may have tokens: credentials (API keys) of which only digests are kept, each with a number of tokens an hour. A
// bucket that holds one hour's worth and fills evenly. Threads: any. Text file, one line each:
//
//   credential NAME SHA256-OF-THE-API-KEY TOKENS-PER-HOUR
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "crypto/sha256.h"

namespace tie::issuer {

constexpr size_t kMaxCredentialsBytes = 4 << 20;
constexpr size_t kMaxCredentials = 20'000;
constexpr size_t kMaxNameBytes = 64;
constexpr uint32_t kMaxTokensPerHour = 1'000'000;

struct Credential {
  std::string name;
  crypto::Digest key_sha256{};
  uint32_t tokens_per_hour = 0;
};

// kBadRequest, naming the line at fault.
Result<std::vector<Credential>> parse_credentials(std::string_view text);
std::string render(const Credential& credential);  // its line
bool is_credential_name(std::string_view name);    // letters, digits, '-', '_', '.', '@'

class Allowance {
 public:
  explicit Allowance(std::vector<Credential> credentials);
  // Takes one token. kUnauthenticated for an unknown API key; kOverloaded when the hour's share is used up.
  Result<void> take(std::string_view api_key, int64_t now_ms);
  // New credentials take the place of the old; who stays keeps what it has used.
  void replace(std::vector<Credential> credentials);

 private:
  struct Bucket {
    Credential credential;
    double tokens;
    int64_t filled_at_ms = 0;
  };
  std::mutex mutex_;
  std::vector<Bucket> buckets_;
};

}  // namespace tie::issuer
