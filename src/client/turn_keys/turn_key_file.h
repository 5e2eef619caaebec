// The table of turn keys in a file, for those who want a conversation's cache to outlive the proxy: sealed under a
// passphrase (scrypt, AES-256-GCM), replaced atomically, mode 0600. Whoever has the file and not the passphrase learns
// its size alone. One thread. Limits: 16 MiB. Bytes: magic `TIETKEY1` (8), scrypt's log2 N, r, p (4 each), its salt
// (32), salt of this writing (32), sealed table; key = HKDF(scrypt's output, label || second salt), nonce zero, the
// bytes before the sealed table authenticated with it.
#pragma once
#include <string>

#include "client/turn_keys/turn_key_table.h"
#include "crypto/passphrase_key.h"
#include "os/fd.h"

namespace tie::client {

class TurnKeyFile {
 public:
  // Reads an existing file into `table`, or remembers where a new one goes. Until the object dies nobody else can open
  // it, since two that save would overwrite each other's keys: kAlreadyExists. Other errors: kUnauthenticated for a
  // wrong passphrase or a changed file, kCorrupt for another kind of file, kBadRequest for an empty passphrase, kIo.
  static Result<TurnKeyFile> open(std::string path, ByteView passphrase, TurnKeyTable& table,
                                  const crypto::PassphraseCost& cost = {});
  Result<void> save(const TurnKeyTable& table) const;

 private:
  TurnKeyFile() = default;
  std::string path_;
  os::Fd lock_;  // on a file beside it, because the file itself is replaced with each save
  Bytes head_;   // magic, cost, salt
  SecretBytes master_;
};

}  // namespace tie::client
