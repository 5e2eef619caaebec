// The public half of a token issuer, as an operator hands it to a node: its name and its keys with the times between
// which their tokens count. A text file, so that it can be read before it is trusted:
//
//   tie token issuer 1
//   name issuer.example
//   key <684 hex digits: SubjectPublicKeyInfo> <not before> <not after>     (seconds since 1970; at most
//   kMaxIssuerKeys)
//
// At any moment at most two keys may count: an issuer with a key for each user would know every user again by the key.
// Written by `tie issuer`, read by every process that judges tokens. Pure functions; any thread; untrusted input.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "keys/tokens/blind_rsa.h"

namespace tie::tokens {

constexpr size_t kMaxIssuerFileBytes = 16 << 10;
constexpr size_t kMaxIssuerKeys = 8;
constexpr size_t kMaxKeysAtOnce = 2;

struct IssuerKey {
  BlindRsaPublicKey key;
  crypto::Digest id{};
  int64_t not_before_s = 0, not_after_s = 0;
  bool counts_at(int64_t now_s) const { return now_s >= not_before_s && now_s < not_after_s; }
};

struct IssuerFile {
  std::string name;
  std::vector<IssuerKey> keys;
};

// kBadRequest, naming the line at fault.
Result<IssuerFile> parse_issuer_file(std::string_view text);
std::string render(const IssuerFile& file);
// Letters, digits and -.: of a host name with an optional port; 1 to kMaxNameBytes.
bool is_issuer_name(std::string_view name);

}  // namespace tie::tokens
