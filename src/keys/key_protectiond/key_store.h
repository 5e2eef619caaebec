// The private request keys of key_protectiond. They are drawn here, never leave, and die here: by destroy(), by expiry,
// with the process. Threads: any; one lock, held for look-ups only (decapsulation runs outside it). Owns: every private
// key. Limits: limits.h. Time comes from the caller's clock so that expiry can be tested. Source: ARCHITECTURE.md,
// "Keys of the node".
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "crypto/kem.h"

namespace tie::kps {

struct KeyFacts {
  std::string uuid;
  crypto::KemId kem = crypto::KemId::kXWing;
  Bytes public_key, binding_public_key;
  uint64_t expires_unix_ms = 0;
};

struct SealedSecret {
  Bytes binding_enc, sealed;  // HPKE to the binding key
};

struct Clocks {
  std::function<int64_t()> monotonic_ms, wall_ms;
  static Clocks real();
};

class KeyStore {
 public:
  explicit KeyStore(Clocks clocks = Clocks::real(), size_t max_keys = 0);  // 0: kMaxKeys

  // Errors: kBadRequest (binding key, lifetime), kUnsupportedFeature (suite), kOverloaded (too many living keys).
  Result<KeyFacts> generate(uint32_t suite, ByteView binding_public_key, uint64_t lifetime_ms);
  // Errors: kNotFound (unknown, destroyed or expired key), kBadRequest (wrong length, low-order point). Cost: about 0.2
  // ms.
  Result<SealedSecret> decap_and_seal(const std::string& uuid, ByteView enc);
  Result<KeyFacts> get(const std::string& uuid);
  Result<void> destroy(const std::string& uuid);
  struct Page {
    std::vector<KeyFacts> keys;
    std::string next_page_token;  // empty: the end
  };
  // In the order of their UUIDs; a key made meanwhile may or may not appear. page_size 0 = kMaxPageSize; more is
  // kBadRequest.
  Result<Page> enumerate(size_t page_size, const std::string& page_token);
  // Drops expired keys; every other call does so for the key it is about.
  void reap();
  size_t count();
  const std::string& boot_id() const { return boot_id_; }

 private:
  struct Key {
    KeyFacts facts;
    SecretBytes expanded;    // the private key, see kem_expand
    int64_t dies_at_ms = 0;  // monotonic
  };
  // The living key of that name; the shared pointer keeps it through a concurrent destroy.
  Result<std::shared_ptr<const Key>> find(const std::string& uuid);
  void reap_locked();

  const Clocks clocks_;
  const size_t max_keys_;
  const std::string boot_id_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Key>> keys_;
};

}  // namespace tie::kps
