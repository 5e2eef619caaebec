// The three questions that workload_servicesd answers, each on its own socket, none of which it answers for another:
// authorize (cloudboardd: one decapsulation of this encapsulated key may happen), decap (a helper: here is the ticket,
// give me the shared secret), claims (anyone local: fresh evidence over my challenge). Threads: any, concurrently.
// Source: proto/wsd.proto.
#pragma once
#include "keys/workload_servicesd/key_ring.h"
#include "keys/workload_servicesd/kps_client.h"
#include "keys/workload_servicesd/ticket_book.h"
#include "wsd.pb.h"

namespace tie::wsd {

class RequestDesk {
 public:
  RequestDesk(KeyService& service, KeyRing& ring, TicketBook& tickets, const attestation::EvidenceSigner& signer)
      : service_(service), ring_(ring), tickets_(tickets), signer_(signer) {}

  // Errors in the reply: KEY_UNKNOWN_OR_EXPIRED, REPLAYED, OVERLOADED, BAD_REQUEST.
  v1::AuthorizeReply authorize(const v1::AuthorizeRequest& request);
  // Errors in the reply: UNAUTHENTICATED for every refusal that concerns ticket, key or encapsulated key, with one
  // sentence; NOT_READY when key_protectiond cannot be asked. The caller wipes the shared secret after sending. Cost:
  // about 1 ms.
  v1::DecapReply decap(const v1::DecapRequest& request);
  v1::ClaimsReply claims(const v1::ClaimsRequest& request);

 private:
  Result<void> register_ticket(const v1::AuthorizeRequest& request);
  Result<v1::DecapReply> decap_once(const v1::DecapRequest& request);
  Result<v1::AttestationBundle> fresh_bundle(const v1::ClaimsRequest& request);
  KeyService& service_;
  KeyRing& ring_;
  TicketBook& tickets_;
  const attestation::EvidenceSigner& signer_;
};

// One framed request and its answer on `socket`; false when the connection must end. The Message types are of
// proto/wsd.proto.
bool serve_authorize(RequestDesk& desk, int socket);
bool serve_decap(RequestDesk& desk, int socket);  // one request a connection, whatever came of it
bool serve_claims(RequestDesk& desk, int socket);

}  // namespace tie::wsd
