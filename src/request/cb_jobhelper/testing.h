// For tests: a client, the keys service and a request as cloudboardd would pass it on.
#pragma once
#include <string>
#include <vector>

#include "base/random.h"
#include "cloudboard.pb.h"
#include "crypto/kem.h"
#include "crypto/request_seal.h"
#include "inference.pb.h"
#include "jobhelper.pb.h"
#include "request/cloud_app/delta_padding/delta_padding.h"
#include "wsd.pb.h"

namespace tie::request::jobhelper::testing {

struct Client {
  crypto::KemKeyPair key = *crypto::kem_generate(crypto::KemId::kX25519HkdfSha256);
  Bytes key_id = Bytes(crypto::kKeyIdBytes, 7);
  crypto::SealedRequest request = *crypto::SealedRequest::create({crypto::kSuiteX25519, key_id, key.public_key});
  std::string clear = make_clear();
  crypto::ChunkSealer sealer = *request.chunk_sealer(as_bytes(clear));
  std::optional<crypto::ResponseOpener> opener;

  std::string make_clear() const {
    v1::ClearParameters clear_parameters;
    clear_parameters.set_workload("tie-inference");
    clear_parameters.set_key_id(to_string(key_id));
    clear_parameters.set_encapsulated_key(to_string(request.enc()));
    clear_parameters.set_sealed_dek(to_string(request.sealed_dek()));
    clear_parameters.set_request_id(std::string(32, 'a'));
    return clear_parameters.SerializeAsString();
  }
  v1::ToHelper start(bool token_required = false) const {
    v1::ToHelper message;
    message.mutable_start()->set_clear_parameters(clear);
    message.mutable_start()->set_ticket(std::string(32, 't'));
    message.mutable_start()->set_token_required(token_required);
    return message;
  }
  v1::ToHelper chunk(std::string_view plaintext, bool final) {
    v1::ToHelper message;
    Bytes sealed = *sealer.seal(as_bytes(plaintext), final);
    message.mutable_chunk()->set_sealed(to_string(sealed));
    message.mutable_chunk()->set_final(final);
    return message;
  }
  v1::DecapReply keys_reply() const {
    SecretBytes secret = *crypto::kem_decapsulate(key.id, key.private_key.view(), request.enc());
    v1::DecapReply reply;
    reply.set_shared_secret(to_string(secret.view()));
    reply.set_suite(static_cast<uint32_t>(key.id));
    return reply;
  }
  // Opens what the helper sent, in order; the last message must be the authenticated final one.
  std::vector<v1::ResponseMessage> open(const std::vector<v1::FromHelper>& messages) {
    std::vector<v1::ResponseMessage> out;
    for (const auto& message : messages) {
      if (message.has_header()) opener.emplace(*request.response_opener(as_bytes(message.header().salt())));
      if (!message.has_chunk()) continue;
      Bytes plaintext = *opener->open(as_bytes(message.chunk().sealed()), message.chunk().final());
      v1::ResponseMessage event;
      tie_check(event.ParseFromArray(plaintext.data() + 4, static_cast<int>(plaintext.size() - 4)), "an event parses");
      out.push_back(event);
    }
    return out;
  }
};

inline v1::FromApp app_event(const std::string& text) {
  v1::ResponseMessage event;
  event.mutable_event()->set_text(text);
  v1::FromApp message;
  message.mutable_response()->set_message(to_string(pad_message(event.SerializeAsString())));
  return message;
}

inline v1::FromApp app_end(v1::FromApp::EndOfResponse::Status status) {
  v1::FromApp message;
  message.mutable_end()->set_status(status);
  return message;
}

}  // namespace tie::request::jobhelper::testing
