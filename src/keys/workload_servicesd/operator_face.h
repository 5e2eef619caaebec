// The operator's HTTP/JSON face of workload_servicesd, on a socket of its own:
//
//   GET  /capabilities    what this daemon can: suites, kind of evidence, hidden memory, lifetimes
//   GET  /keys            the living request keys, newest last
//   POST /generate_key    {"suite": "xwing"|"x25519"}: a fresh key now; the old one is accepted until it expires
//   POST /destroy         {"key_id": HEX}: that key answers nothing from now on, and another is made
//   POST /authorize, /decap: 403. Each is answered on its own socket only, to its own peer: who could do both here
//   could
//                         open captured requests.
//
// Errors: {"error": sentence} with 400, 401 (a peer that may look and not act), 403, 404, 409, 500. No secret is ever
// in a reply. Threads: any. Untrusted input: the request. Source: ARCHITECTURE.md, "Keys of the node".
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "crypto/kem.h"
#include "keys/workload_servicesd/http_message.h"
#include "keys/workload_servicesd/key_ring.h"
#include "keys/workload_servicesd/limits.h"

namespace tie::wsd {

struct OperatorFacts {
  std::vector<crypto::KemId> suites;
  std::string evidence_kind;
  bool hidden_memory = false;
  int64_t key_lifetime_ms = 0, key_grace_ms = 0;
  int64_t generate_wait_ms = kGenerateWaitMs;
};

class OperatorFace {
 public:
  // Both take effect within the keeper's next step.
  struct Actions {
    std::function<void(crypto::KemId)> rotate;
    std::function<void(const crypto::Digest&)> revoke;
  };
  OperatorFace(OperatorFacts facts, KeyRing& ring, Actions actions)
      : facts_(std::move(facts)), ring_(ring), actions_(std::move(actions)) {}

  // `may_act`: whether this peer may change anything. Waits for a fresh key, at most generate_wait_ms.
  HttpReply answer(const HttpRequest& request, bool may_act);

 private:
  HttpReply capabilities() const;
  HttpReply keys();
  HttpReply generate_key(const std::string& body);
  HttpReply destroy(const std::string& body);
  const OperatorFacts facts_;
  KeyRing& ring_;
  const Actions actions_;
};

// One request and its reply on `socket`, which then ends. `operator_uid`: who may act beside root; nullopt: whoever
// reaches the socket.
bool serve_operator(OperatorFace& face, std::optional<uint32_t> operator_uid, int socket);

}  // namespace tie::wsd
