// key_protectiond as workload_servicesd sees it: an interface, so that tests can stand in for it, and its gRPC form.
// Threads: any. Every call ends by kKeyServiceTimeoutMs. Errors are those of the service; kNotReady when it cannot be
// reached.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "keys/attestation/evidence.h"
#include "keys/tls_link/tls_link.h"
#include "keys/workload_servicesd/binding_key.h"

namespace tie::wsd {

struct MadeKey {
  std::string uuid;
  Bytes public_key;
  uint64_t expires_unix_ms = 0;
  attestation::Evidence evidence;
};

class KeyService {
 public:
  virtual ~KeyService() = default;
  virtual Result<MadeKey> generate(crypto::KemId kem, ByteView binding_public_key, int64_t lifetime_ms,
                                   ByteView challenge) = 0;
  virtual Result<SealedSecret> decap_and_seal(const std::string& uuid, ByteView enc) = 0;
  virtual Result<attestation::Evidence> evidence(const std::string& uuid, ByteView challenge) = 0;
  virtual Result<std::vector<std::string>> enumerate() = 0;  // the UUIDs of all its living keys
  virtual Result<void> destroy(const std::string& uuid) = 0;
  virtual Result<std::string> heartbeat() = 0;  // the service's boot id
  // Whether the link may have broken since the last call: a reason to ask for the boot id at once.
  virtual bool link_changed() = 0;
};

// On this machine, through a unix socket.
std::unique_ptr<KeyService> connect_key_service(const std::string& socket_path);
// On another host, through TCP under mutual TLS. kBadRequest when the certificate files cannot be used.
Result<std::unique_ptr<KeyService>> connect_remote_key_service(const std::string& address,
                                                               const keys::TlsIdentity& identity);

}  // namespace tie::wsd
