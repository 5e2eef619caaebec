// An issuer's folder on its own machine:
//
//   FOLDER/issuer              the public half: what nodes get (keys/tokens/issuer_file.h)
//   FOLDER/keys/KEY-ID.pem     a private key for each of its keys, readable by its owner alone
//   FOLDER/credentials         who may have tokens (credentials.h)
//
// Every change is one renamed file. Used by `tie issuer`; one process at a time changes a folder.
#pragma once
#include <string>

#include "keys/token_issuer/issuer.h"

namespace tie::issuer {

constexpr int64_t kKeyOverlapS = 24 * 3600;  // a new key counts this long before the old one ends

// Makes the folder with a first key. kAlreadyExists.
Result<void> create_folder(const std::string& folder, const std::string& name, int64_t now_s, int64_t key_seconds);
// Adds a key that follows the last one and drops keys that have ended. kBadRequest when the last one is still young
// enough that a third would count at once.
Result<tokens::IssuerFile> add_key(const std::string& folder, int64_t now_s, int64_t key_seconds);
// Returns the API key, which is kept nowhere. kAlreadyExists when the name is taken.
Result<std::string> add_credential(const std::string& folder, const std::string& name, uint32_t tokens_per_hour);

Result<tokens::IssuerFile> load_public(const std::string& folder);
Result<std::vector<SigningKey>> load_keys(const std::string& folder);
Result<std::vector<Credential>> load_credentials(const std::string& folder);

}  // namespace tie::issuer
