#include "keys/workload_servicesd/request_desk.h"

#include "base/clock.h"
#include "crypto/chunk_keys.h"
#include "keys/workload_servicesd/bundle.h"
#include "keys/workload_servicesd/limits.h"
#include "os/framed_message.h"

namespace tie::wsd {
namespace {

// What a helper hears for a bad ticket, a used one, another key's, another request's, a key that died: nothing it could
// learn from.
std::unexpected<Error> not_this_request() {
  return fail(Code::kUnauthenticated, "this request may not be decapsulated");
}

void set_error(v1::ErrorDetail& out, const Error& error) {
  out.set_code(static_cast<v1::ErrorCode>(error.code));
  out.set_message(error.message);
}

}  // namespace

v1::AuthorizeReply RequestDesk::authorize(const v1::AuthorizeRequest& request) {
  v1::AuthorizeReply reply;
  auto said = register_ticket(request);
  if (!said) set_error(*reply.mutable_error(), said.error());
  return reply;
}

Result<void> RequestDesk::register_ticket(const v1::AuthorizeRequest& request) {
  const int64_t now = monotonic_ms();
  TIE_TRY(const crypto::Digest key_id, crypto::digest_from(as_bytes(request.key_id()), "a key id"));
  TIE_TRY(const crypto::Digest enc_sha256,
          crypto::digest_from(as_bytes(request.enc_sha256()), "the digest of an encapsulated key"));
  TIE_TRY(const auto key, ring_.find(key_id, now));
  if (ring_.was_seen(key->id, enc_sha256)) return fail(Code::kReplayed, "this sealed request was seen before");
  return tickets_.enter(as_bytes(request.ticket()), {key_id, enc_sha256}, now);
}

v1::DecapReply RequestDesk::decap(const v1::DecapRequest& request) {
  auto reply = decap_once(request);
  if (reply) return std::move(*reply);
  v1::DecapReply refusal;
  set_error(*refusal.mutable_error(), reply.error());
  return refusal;
}

Result<v1::DecapReply> RequestDesk::decap_once(const v1::DecapRequest& request) {
  const int64_t now = monotonic_ms();
  const auto ticket = tickets_.present(as_bytes(request.ticket()), now);
  if (!ticket) return not_this_request();
  const ByteView enc = as_bytes(request.encapsulated_key());
  const bool same = equal_constant_time(ticket->key_id, as_bytes(request.key_id())) &&
                    equal_constant_time(ticket->enc_sha256, crypto::sha256(enc));
  if (!same) return not_this_request();
  auto key = ring_.find(ticket->key_id, now);
  if (!key || !ring_.mark_seen(ticket->key_id, ticket->enc_sha256, now)) return not_this_request();

  const RequestKey& held = **key;
  auto answer = service_.decap_and_seal(held.uuid, enc);
  if (!answer && (answer.error().code == Code::kNotReady || answer.error().code == Code::kDeadline))
    return fail(Code::kNotReady, "the key service cannot be reached");
  if (!answer) return not_this_request();
  auto shared = held.binding->open(held.kem, held.uuid, enc, *answer);
  if (!shared || shared->size() != 32) return not_this_request();

  v1::DecapReply reply;
  reply.set_shared_secret(shared->data(), shared->size());
  reply.set_suite(static_cast<uint16_t>(held.kem));
  reply.set_hpke_info(to_string(crypto::request_info({held.kem, crypto::AeadId::kAes256Gcm}, held.id)));
  return reply;
}

v1::ClaimsReply RequestDesk::claims(const v1::ClaimsRequest& request) {
  v1::ClaimsReply reply;
  auto bundle = fresh_bundle(request);
  if (bundle) {
    *reply.mutable_bundle() = std::move(*bundle);
  } else {
    set_error(*reply.mutable_error(), bundle.error());
  }
  return reply;
}

Result<v1::AttestationBundle> RequestDesk::fresh_bundle(const v1::ClaimsRequest& request) {
  const ByteView challenge = as_bytes(request.challenge());
  TIE_TRY(const auto key, ring_.find(as_bytes(request.key_id()), monotonic_ms()));
  // A key keeps the models it was made for; its bundle says which.
  const attestation::Evidence published = attestation::evidence_from_proto(key->bundle->workload());
  TIE_TRY(const attestation::Evidence workload, signer_.state(published.claims, challenge));
  TIE_TRY(const attestation::Evidence key_service, service_.evidence(key->uuid, challenge));
  v1::AttestationBundle out = *key->bundle;
  attestation::to_proto(workload, *out.mutable_workload());
  attestation::to_proto(key_service, *out.mutable_key_service());
  return out;
}

bool serve_authorize(RequestDesk& desk, int socket) {
  const Deadline deadline = Deadline::in_ms(kFrameDeadlineMs);
  auto request = os::receive_message<v1::AuthorizeRequest>(socket, kMaxRequestFrameBytes, deadline);
  return request && os::send_message(socket, desk.authorize(request->message), deadline);
}

bool serve_decap(RequestDesk& desk, int socket) {
  auto request =
      os::receive_message<v1::DecapRequest>(socket, kMaxRequestFrameBytes, Deadline::in_ms(kFrameDeadlineMs));
  if (!request) return false;
  v1::DecapReply reply = desk.decap(request->message);
  std::string wire = reply.SerializeAsString();
  (void)os::send_frame(socket, as_bytes(wire), {},
                       Deadline::in_ms(kFrameDeadlineMs));  // a helper that is gone gets nothing, and no second try
  secure_zero(wire);
  secure_zero(*reply.mutable_shared_secret());
  return false;
}

bool serve_claims(RequestDesk& desk, int socket) {
  auto request =
      os::receive_message<v1::ClaimsRequest>(socket, kMaxRequestFrameBytes, Deadline::in_ms(kFrameDeadlineMs));
  return request && os::send_message(socket, desk.claims(request->message), Deadline::in_ms(kFrameDeadlineMs));
}

}  // namespace tie::wsd
