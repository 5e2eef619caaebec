// Hostile messages on the three sockets, in any order, with a key service that answers: no crash, and no shared secret
// without a ticket.
#include "keys/workload_servicesd/key_keeper.h"
#include "keys/workload_servicesd/request_desk.h"
#include "keys/workload_servicesd/testing/fake_key_service.h"

using namespace tie;

namespace {

struct Node {
  Node() : keeper(service, ring, signer, wsd::some_facts(), {crypto::KemId::kX25519HkdfSha256}) {
    (void)keeper.step(monotonic_ms(), 1);
  }
  wsd::FakeKeyService service;
  attestation::SoftwareSigner signer;
  wsd::KeyRing ring{1000};
  wsd::TicketBook tickets{1000, 100};
  wsd::KeyKeeper keeper;
  wsd::RequestDesk desk{service, ring, tickets, signer};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Node* node = new Node;
  if (size == 0) return 0;
  const ByteView body(data + 1, size - 1);
  const int length = static_cast<int>(body.size());
  v1::AuthorizeRequest authorize;
  v1::DecapRequest decap;
  v1::ClaimsRequest claims;
  if (data[0] % 3 == 0 && authorize.ParseFromArray(body.data(), length)) (void)node->desk.authorize(authorize);
  if (data[0] % 3 == 1 && decap.ParseFromArray(body.data(), length)) {
    const auto reply = node->desk.decap(decap);
    tie_check(reply.has_error() != !reply.shared_secret().empty(), "a secret or a refusal");
    tie_check(reply.has_error() || node->service.decapsulated != 0, "a secret comes from the key service");
  }
  if (data[0] % 3 == 2 && claims.ParseFromArray(body.data(), length)) {
    const auto reply = node->desk.claims(claims);
    tie_check(reply.has_error() != reply.has_bundle(), "a bundle or a refusal");
  }
  return 0;
}
