#include "request/cb_jobhelper/session.h"

#include "base/byte_buckets.h"
#include "cloudboard.pb.h"
#include "crypto/kem.h"
#include "request/cloud_app/delta_padding/delta_padding.h"

namespace tie::request::jobhelper {
namespace {

constexpr const char* kUniformSentence = "The request could not be authenticated.";

std::optional<crypto::HpkeSuite> suite_of(uint32_t kem_id) {
  for (const crypto::HpkeSuite& suite : {crypto::kSuiteXWing, crypto::kSuiteX25519})
    if (static_cast<uint32_t>(suite.kem) == kem_id) return suite;
  return std::nullopt;
}

}  // namespace

void Session::from_cloudboard(const v1::ToHelper& message) {
  if (done()) return;
  switch (message.kind_case()) {
    case v1::ToHelper::kStart:
      return start(message.start());
    case v1::ToHelper::kChunk:
      return chunk(message.chunk());
    case v1::ToHelper::kCancel:
      return lost_cloudboard();
    default:
      return give_up();
  }
}

void Session::start(const v1::ToHelper::Start& start) {
  if (state_ != State::kIdle) return give_up();
  v1::ClearParameters clear;
  if (start.clear_parameters().size() > kMaxClearParametersBytes || !clear.ParseFromString(start.clear_parameters()) ||
      start.ticket().size() != kTicketBytes)
    return fail_clear(Code::kBadRequest, "The request's clear parameters are not valid.");
  clear_parameters_ = start.clear_parameters();
  request_id_ = clear.request_id();
  trace_id_ = clear.trace_id();
  principal_ = start.principal();
  key_id_ = clear.key_id();
  enc_ = clear.encapsulated_key();
  sealed_dek_ = clear.sealed_dek();
  // A node that can judge tokens asks for them, whatever cloudboardd says.
  token_required_ = start.token_required() || verifier_ != nullptr;
  v1::DecapRequest request;
  request.set_ticket(start.ticket());
  request.set_key_id(key_id_);
  request.set_encapsulated_key(enc_);
  state_ = State::kDecapsulating;
  peers_.to_keys(request);
}

void Session::chunk(const v1::ToHelper::Chunk& chunk) {
  if (state_ == State::kIdle || last_chunk_seen_) return give_up();
  last_chunk_seen_ = chunk.final();
  if (state_ == State::kDecapsulating) {
    buffered_bytes_ += chunk.sealed().size();
    buffered_.push_back({chunk.sealed(), chunk.final()});
    return;
  }
  open_chunk(as_bytes(chunk.sealed()), chunk.final());
}

void Session::from_keys(const v1::DecapReply& reply) {
  if (done()) return;
  if (state_ != State::kDecapsulating) return give_up();
  if (!open_request(reply)) return refuse();
  state_ = State::kAccepting;
  // Chunks that came before the key, each with the final flag it came with.
  std::vector<Sealed> chunks = std::move(buffered_);
  buffered_bytes_ = 0;
  for (const Sealed& sealed : chunks) {
    if (done()) return;
    open_chunk(as_bytes(sealed.bytes), sealed.final);
  }
}

Result<void> Session::open_request(const v1::DecapReply& reply) {
  if (reply.has_error()) return fail(Code::kUnauthenticated, kUniformSentence);
  auto suite = suite_of(reply.suite());
  if (!suite) return fail(Code::kUnauthenticated, kUniformSentence);
  TIE_TRY(auto opened, crypto::OpenedRequest::open(*suite, as_bytes(key_id_), as_bytes(enc_),
                                                   as_bytes(reply.shared_secret()), as_bytes(sealed_dek_)));
  TIE_TRY(auto opener, opened.chunk_opener(as_bytes(clear_parameters_)));
  opened_ = std::move(opened);
  opener_ = std::move(opener);
  return {};
}

void Session::open_chunk(ByteView sealed, bool final) {
  Result<Bytes> plaintext = opener_->open(sealed, final);
  if (state_ == State::kAccepting) {
    if (!plaintext) return refuse();
    Result<bool> checked = check_token(*plaintext, final);
    if (!checked) return refuse();
    if (!*checked) return;
    if (!accept()) return give_up();
  } else if (!plaintext) {
    v1::ToApp message;
    message.mutable_teardown();
    peers_.to_app(message);
    return finish(Final::INVALID_REQUEST);
  }
  send_input(*plaintext, final);
  secure_zero(*plaintext);
}

Result<bool> Session::check_token(Bytes& plaintext, bool final) {
  if (!token_required_) return true;
  append(token_stream_, plaintext);
  secure_zero(plaintext);
  bool whole = token_stream_.size() >= crypto::kMessageLengthBytes;
  size_t size = whole ? load_u32_be(token_stream_.data()) : 0;
  if (size > kMaxTokenMessageBytes) return fail(Code::kUnauthenticated, kUniformSentence);
  size_t end = crypto::kMessageLengthBytes + size;
  if (!whole || token_stream_.size() < end) {
    if (final) return fail(Code::kUnauthenticated, kUniformSentence);
    return false;
  }
  v1::BodyMessage message;
  bool parsed = message.ParseFromArray(token_stream_.data() + crypto::kMessageLengthBytes, static_cast<int>(size));
  bool accepted = parsed && message.kind_case() == v1::BodyMessage::kOneTimeToken && verifier_ &&
                  verifier_(as_bytes(message.one_time_token()));
  if (!accepted) return fail(Code::kUnauthenticated, kUniformSentence);
  plaintext.assign(token_stream_.begin() + static_cast<ptrdiff_t>(end), token_stream_.end());
  secure_zero(token_stream_);
  token_stream_.clear();
  return true;
}

// From here on the client hears sealed events only.
Result<void> Session::accept() {
  TIE_TRY(auto sealer, opened_->response_sealer());
  sealer_ = std::move(sealer);
  state_ = State::kServing;
  v1::FromHelper header;
  header.mutable_header()->set_salt(to_string(sealer_->salt()));
  peers_.to_cloudboard(header);
  v1::ToApp message;
  auto* parameters = message.mutable_parameters();
  parameters->set_request_id(request_id_);
  parameters->set_trace_id(trace_id_);
  parameters->set_principal(principal_);
  peers_.to_app(message);
  return {};
}

void Session::send_input(ByteView plaintext, bool final) {
  v1::ToApp message;
  message.mutable_input()->set_data(plaintext.data(), plaintext.size());
  message.mutable_input()->set_final(final);
  peers_.to_app(message);
  secure_zero(*message.mutable_input()->mutable_data());
}

void Session::from_app(const v1::FromApp& message) {
  if (done()) return;
  if (state_ != State::kServing) return lost_app();
  switch (message.kind_case()) {
    case v1::FromApp::kResponse:
      return seal_event(message.response().message());
    case v1::FromApp::kDeriveKey:
      return derive_key(message.derive_key().purpose());
    case v1::FromApp::kEnd:
      switch (message.end().status()) {
        case v1::FromApp::EndOfResponse::OK:
          return finish(Final::OK);
        case v1::FromApp::EndOfResponse::INVALID_REQUEST:
          return finish(Final::INVALID_REQUEST);
        default:
          return finish(Final::INTERNAL_ERROR);
      }
    default:
      return finish(Final::INTERNAL_ERROR);
  }
}

// The app pads; an event outside the buckets would show its size to the network, so it is not sent.
void Session::seal_event(const std::string& message) {
  if (!is_bucket(message.size())) return finish(Final::INTERNAL_ERROR);
  Result<Bytes> sealed = sealer_->seal(as_bytes(message), false);
  if (!sealed) return finish(Final::INTERNAL_ERROR);
  v1::FromHelper out;
  out.mutable_chunk()->set_sealed(sealed->data(), sealed->size());
  peers_.to_cloudboard(out);
}

void Session::derive_key(const std::string& purpose) {
  if (++derived_keys_ > kMaxDerivedKeys) return finish(Final::INTERNAL_ERROR);
  Result<SecretBytes> key = opened_->derive_key(purpose);
  if (!key) return finish(Final::INTERNAL_ERROR);
  v1::ToApp message;
  message.mutable_derived_key()->set_purpose(purpose);
  message.mutable_derived_key()->set_key(key->data(), key->size());
  peers_.to_app(message);
  secure_zero(*message.mutable_derived_key()->mutable_key());
}

void Session::lost_app() {
  if (done()) return;
  if (state_ == State::kServing) return finish(Final::INTERNAL_ERROR);
  if (state_ == State::kDecapsulating || state_ == State::kAccepting) return refuse();
  state_ = State::kDone;
}

void Session::lost_keys() {
  if (done()) return;
  if (state_ == State::kDecapsulating) return refuse();
  if (state_ == State::kIdle)
    state_ = State::kDone;  // a warm helper without keys is of no use: the pool starts another
}

void Session::lost_cloudboard() {
  if (done()) return;
  v1::ToApp message;
  message.mutable_teardown();
  peers_.to_app(message);
  state_ = State::kDone;
}

void Session::give_up() {
  if (done()) return;
  if (state_ == State::kServing) return finish(Final::INTERNAL_ERROR);
  if (state_ == State::kDecapsulating || state_ == State::kAccepting) return refuse();
  fail_clear(Code::kInternal, error_info(Code::kInternal).sentence);
}

void Session::refuse() {
  fail_clear(Code::kUnauthenticated, kUniformSentence);
}

void Session::fail_clear(Code code, const char* sentence) {
  v1::FromHelper message;
  message.mutable_failed()->set_code(static_cast<v1::ErrorCode>(code));
  message.mutable_failed()->set_message(sentence);
  peers_.to_cloudboard(message);
  state_ = State::kDone;
}

void Session::finish(Final::Status status) {
  v1::ResponseMessage summary;
  summary.mutable_final()->set_status(status);
  Result<Bytes> sealed = sealer_->seal(pad_message(summary.SerializeAsString()), true);
  if (sealed) {
    v1::FromHelper out;
    out.mutable_chunk()->set_sealed(sealed->data(), sealed->size());
    out.mutable_chunk()->set_final(true);
    peers_.to_cloudboard(out);
  }
  state_ = State::kDone;
}

}  // namespace tie::request::jobhelper
