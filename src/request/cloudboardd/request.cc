#include "request/cloudboardd/request.h"

#include <algorithm>

#include "base/random.h"
#include "crypto/sha256.h"
#include "request/cloudboardd/store_link.h"

namespace tie::request::cloudboard {
namespace {

Error error_of(Code code) {
  return {code, error_info(code).sentence};
}

// A compromised helper may send any code; only rows of the table get out, and never success.
Error error_from(const v1::ErrorDetail& detail) {
  Code code = static_cast<Code>(detail.code());
  if (!v1::ErrorCode_IsValid(detail.code()) || code == Code::kOk) code = Code::kInternal;
  return error_of(code);
}

}  // namespace

Request::Request(RequestServices services, std::shared_ptr<ClientStream> stream, Admission::Slot slot,
                 std::string principal)
    : services_(services),
      stream_(std::move(stream)),
      slot_(std::move(slot)),
      principal_(std::move(principal)),
      begin_ms_(monotonic_ms()),
      client_ms_(begin_ms_),
      helper_ms_(begin_ms_) {}

void Request::on_message(v1::InvokeRequest message) {
  if (ended_) return;
  reading_ = false;
  client_ms_ = monotonic_ms();
  if (auto handled = handle(message); !handled) return end(std::move(handled.error()));
  read_on();
}

Result<void> Request::handle(v1::InvokeRequest& message) {
  TIE_CHECK_OK(order_.next(message));
  switch (message.kind_case()) {
    case v1::InvokeRequest::kSetup: {
      v1::InvokeResponse ack;
      ack.mutable_setup_ack()->set_protocol_version(1);
      stream_->send(std::move(ack));
      return {};
    }
    case v1::InvokeRequest::kParameters:
      return on_parameters(message.parameters().clear_parameters());
    case v1::InvokeRequest::kChunk:
      return on_chunk(*message.mutable_chunk());
    default:
      return fail(Code::kCancelled, "The client terminated the request.");
  }
}

Result<void> Request::on_parameters(const std::string& clear_parameters) {
  TIE_TRY(v1::ClearParameters clear, parse_clear_parameters(clear_parameters));
  TIE_TRY(KeyBoard::KeyFacts facts, services_.keys.check(as_bytes(clear.key_id())));
  // On record before anything else happens to it: a kill at any later point cannot let it in twice.
  TIE_CHECK_OK(services_.keys.admit(as_bytes(clear.key_id()), as_bytes(clear.encapsulated_key())));
  clear_parameters_ = clear_parameters;
  token_required_ = facts.token_required;
  authorize(clear);
  if (!ended_) take_helper();
  return {};
}

void Request::authorize(const v1::ClearParameters& clear) {
  ticket_.resize(kTicketBytes);
  random_bytes({reinterpret_cast<uint8_t*>(ticket_.data()), ticket_.size()});
  v1::AuthorizeRequest question;
  crypto::Digest fingerprint = crypto::sha256(as_bytes(clear.encapsulated_key()));
  question.set_enc_sha256(fingerprint.data(), fingerprint.size());
  question.set_ticket(ticket_);
  question.set_key_id(clear.key_id());
  services_.authorizer.ask(std::move(question), [weak = weak_from_this()](Result<v1::AuthorizeReply> reply) {
    auto self = weak.lock();
    if (!self || self->ended_) return;
    if (!reply) return self->end(std::move(reply.error()));
    if (reply->has_error()) return self->end(error_from(reply->error()));
    self->authorized_ = true;
    self->start_when_ready();
  });
}

void Request::take_helper() {
  pool_ticket_ = services_.pool.take([weak = weak_from_this()](Result<std::shared_ptr<Helper>> helper) {
    auto self = weak.lock();
    if (!self || self->ended_) {
      if (helper) (*helper)->close();
      return;
    }
    if (!helper) return self->end(std::move(helper.error()));
    self->helper_ = std::move(*helper);
    self->helper_->set_owner(self.get());
    self->start_when_ready();
  });
}

void Request::start_when_ready() {
  if (!authorized_ || !helper_ || started_) return;
  started_ = true;
  helper_ms_ = monotonic_ms();
  v1::ToHelper message;
  auto* start = message.mutable_start();
  start->set_clear_parameters(clear_parameters_);
  start->set_ticket(ticket_);
  start->set_principal(principal_);
  start->set_token_required(token_required_);
  os::Fd store = open_store(services_.cache_socket, principal_);
  int fd = store.get();
  helper_->send(message, store ? std::span<const int>(&fd, 1) : std::span<const int>());
  for (v1::SealedChunk& chunk : early_chunks_) send_chunk(chunk);
  early_chunks_.clear();
  early_bytes_ = 0;
  read_on();
}

Result<void> Request::on_chunk(v1::SealedChunk& chunk) {
  if (chunk.sealed().size() > kMaxChunkBytes) return fail(Code::kTooLarge, "One chunk is at most 1 MiB.");
  request_bytes_ += chunk.sealed().size();
  if (request_bytes_ > kMaxRequestBytes) return fail(Code::kTooLarge, "A request is at most 10 MiB.");
  if (started_) {
    send_chunk(chunk);
    return {};
  }
  early_bytes_ += chunk.sealed().size();
  early_chunks_.push_back(std::move(chunk));
  return {};
}

void Request::send_chunk(v1::SealedChunk& chunk) {
  v1::ToHelper message;
  message.mutable_chunk()->set_allocated_sealed(chunk.release_sealed());
  message.mutable_chunk()->set_final(chunk.final());
  helper_->send(message);
}

// The client is read only while what it sends can be passed on: its own transport feels the back-pressure.
// One more read after the last chunk notices a client that says too much, or goes away.
void Request::read_on() {
  if (reading_ || ended_) return;
  size_t waiting = started_ && helper_ ? helper_->queued_bytes() : early_bytes_;
  if (waiting >= kPauseReadBytes) return;
  reading_ = true;
  client_ms_ = monotonic_ms();
  stream_->read_next();
}

void Request::on_client_closed() {
  if (ended_) return;
  if (auto allowed = order_.client_closed(); !allowed) end(std::move(allowed.error()));
}

void Request::on_client_gone() {
  if (!ended_) end(error_of(Code::kCancelled), true);
}

void Request::on_taken() {
  if (ended_ || !helper_) return;
  client_ms_ = monotonic_ms();
  if (stream_->queued_bytes() < kPauseHelperBytes) helper_->pause_reading(false);
}

void Request::helper_said(Helper&, v1::FromHelper& message) {
  if (ended_) return;
  helper_ms_ = monotonic_ms();
  bool expected = started_ && (message.has_failed() ? !header_sent_ : message.has_chunk() == header_sent_);
  if (!expected) return end(error_of(Code::kInternal));
  if (message.has_failed()) return end(error_from(message.failed()));
  forward(message);
}

void Request::forward(v1::FromHelper& message) {
  v1::InvokeResponse out;
  bool final = false;
  if (message.has_header()) {
    header_sent_ = true;
    out.mutable_response_header()->set_salt(message.header().salt());
  } else {
    if (!std::exchange(answered_, true)) services_.pool.refill();
    final = message.chunk().final();
    out.mutable_chunk()->set_allocated_sealed(message.mutable_chunk()->release_sealed());
    out.mutable_chunk()->set_final(final);
  }
  stream_->send(std::move(out));
  if (final) return end({Code::kOk, ""});
  if (stream_->queued_bytes() >= kPauseHelperBytes) helper_->pause_reading(true);
}

void Request::helper_lost(Helper&) {
  if (!ended_) end(error_of(Code::kInternal));
}

void Request::check_deadlines(int64_t now_ms) {
  if (ended_) return;
  bool uploading = !order_.complete();
  if (uploading && ((reading_ && now_ms - client_ms_ > kClientIdleMs) || now_ms - begin_ms_ > kMaxUploadMs))
    return end({Code::kDeadline, "The request was not completed in time."});
  if (stream_->stalled_ms() > kClientIdleMs) return end({Code::kDeadline, "The client took nothing for 30 s."}, true);
  bool helper_owes = started_ && stream_->queued_bytes() == 0 && (!uploading || !reading_);
  const int64_t silent_ms = helper_owes ? now_ms - std::max(helper_ms_, client_ms_) : 0;
  // One that never said anything (stopped, or starved) has answered nothing: the client may try again, with another.
  if (!header_sent_ && silent_ms > kHelperStartMs) return end(error_of(Code::kNotReady));
  if (silent_ms > kHelperIdleMs) end(error_of(Code::kDeadline));
}

void Request::end(Error status, bool drop_queued) {
  ended_ = true;
  services_.outcomes.count(outcome_of(status.code, order_.complete(), header_sent_));
  if (pool_ticket_ != 0) services_.pool.give_up(pool_ticket_);
  if (helper_) {
    if (status.code != Code::kOk && started_) {
      v1::ToHelper message;
      message.mutable_cancel();
      helper_->send(message);
    }
    reap(services_.loop, std::move(helper_), std::move(slot_), kExitGraceMs);
  } else {
    slot_ = Admission::Slot();
  }
  early_chunks_.clear();
  stream_->finish(status, drop_queued);
}

}  // namespace tie::request::cloudboard
