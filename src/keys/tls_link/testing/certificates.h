// Throw-away certificates for tests, made with the openssl command. Tests only.
#pragma once
#include <cstdlib>
#include <string>

#include "keys/tls_link/tls_link.h"

namespace tie::keys {

inline bool run_quietly(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// An authority FOLDER/NAME.pem; false when there is no openssl command.
inline bool make_authority(const std::string& folder, const std::string& name) {
  return run_quietly("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name +
                     " -keyout " + folder + "/" + name + ".key -out " + folder + "/" + name + ".pem");
}

// A certificate FOLDER/NAME.pem for the DNS name `name`, by `authority`.
inline bool make_certificate(const std::string& folder, const std::string& authority, const std::string& name) {
  const std::string base = folder + "/" + name;
  return run_quietly("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout " + base +
                     ".key -out " + base + ".csr") &&
         run_quietly("(printf 'subjectAltName=DNS:" + name + "' > " + base + ".ext)") &&
         run_quietly("openssl x509 -req -days 2 -in " + base + ".csr -CA " + folder + "/" + authority + ".pem -CAkey " +
                     folder + "/" + authority + ".key -CAcreateserial -extfile " + base + ".ext -out " + base + ".pem");
}

inline TlsIdentity identity_of(const std::string& folder, const std::string& authority, const std::string& name,
                               const std::string& peer) {
  return {folder + "/" + name + ".pem", folder + "/" + name + ".key", folder + "/" + authority + ".pem", peer};
}

}  // namespace tie::keys
