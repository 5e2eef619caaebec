// Refuses what was seen before: for each key one set of fingerprints, SHA-256 of an encapsulated key (cloudboardd) or
// of a spent token (token_spentd), kept in a file of the tmpfs state folder so that it survives a kill of the daemon. A
// fingerprint is in the file before anything else happens to what it stands for. File: header {magic, key id}, then
// records {32-byte fingerprint, 8 bytes of SHA-256(previous check || fingerprint)}. A torn last record belongs to a
// request that went no further and is cut off; any other mismatch means that the record is lost, and so is its key.
// Threads: one. Never evicts. Source: ARCHITECTURE.md, "Keys of the node".
#pragma once
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <unordered_set>

#include "base/bytes.h"
#include "os/fd.h"

namespace tie::keys {

using Fingerprint = std::array<uint8_t, 32>;

class ReplayGuard {
 public:
  // Takes the folder for this process alone (lock file). kAlreadyExists when another daemon holds it.
  static Result<ReplayGuard> open(const std::string& state_dir, size_t max_records_per_key);

  // Gets ready to judge requests for a key: restores its record, or begins one when `may_begin` (the key was never in
  // use before). Idempotent. kCorrupt when the record cannot be restored or there is none though the key was in use:
  // the key must then be revoked.
  Result<void> open_key(ByteView key_id, bool may_begin);
  // The key will not be used again; its record is deleted.
  void close_key(ByteView key_id);

  // Records the fingerprint of an encapsulated key, or of a token. kReplayed when seen before; kKeyUnknownOrExpired for
  // a key that is not open or whose record is full or can no longer be written.
  Result<void> record(ByteView key_id, ByteView encapsulated_key);
  size_t size(ByteView key_id) const;
  // Keys whose record failed since open_key.
  bool lost(ByteView key_id) const;

 private:
  struct Hash {
    size_t operator()(const Fingerprint& f) const {
      size_t h;
      std::memcpy(&h, f.data(), sizeof h);
      return h;
    }
  };
  struct Key {
    os::Fd file;
    std::unordered_set<Fingerprint, Hash> seen;
    std::array<uint8_t, 8> check{};
    bool lost = false;
  };
  ReplayGuard(std::string dir, os::Fd lock, size_t max_records)
      : dir_(std::move(dir)), lock_(std::move(lock)), max_records_(max_records) {}
  std::string path_of(ByteView key_id) const;
  Result<Key> begin(ByteView key_id) const;
  Result<Key> restore(ByteView key_id) const;

  std::string dir_;
  os::Fd lock_;
  size_t max_records_;
  std::map<std::string, Key> keys_;  // by key id
};

}  // namespace tie::keys
