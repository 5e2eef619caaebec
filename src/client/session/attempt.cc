#include "client/session/attempt.h"

#include "base/random.h"
#include "client/session/grpc_error.h"
#include "client/session/limits.h"
#include "crypto/message_splitter.h"

namespace tie::client {

Attempt::Attempt(NodeLink& link, Deadline deadline, Cancellation& cancel) : link_(link) {
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(deadline.remaining_ms()));
  context_.set_initial_metadata_corked(true);  // headers, setup, parameters and a small body leave together
  hook_ = std::make_unique<Cancellation::Hook>(cancel, [this] { context_.TryCancel(); });
}

Attempt::~Attempt() {
  if (stream_ && !finished_) close();
  hook_.reset();
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
  if (final_seen_) link_.drawn_ahead().draw(key_);
}

bool Attempt::wait_for_operation_until(std::chrono::system_clock::time_point limit, bool& ok) {
  void* tag = nullptr;
  if (queue_.AsyncNext(&tag, &ok, limit) != grpc::CompletionQueue::TIMEOUT) return true;
  context_.TryCancel();
  queue_.Next(&tag, &ok);
  return false;
}

// After the authenticated end, or its error, the node may still be storing state for this request: it is given a moment
// to close by itself.
void Attempt::close() {
  auto limit = std::chrono::system_clock::now() + std::chrono::milliseconds(kAfterFinalWaitMs);
  if (!final_seen_ && !discarding_) context_.TryCancel();
  for (bool more = discarding_ && !final_seen_; more;) {
    stream_->Read(&incoming_, this);
    more = wait_for_operation_until(limit, more) && more;
  }
  grpc::Status status;
  stream_->Finish(&status, this);
  bool ok = false;
  wait_for_operation_until(limit, ok);
}

Result<std::unique_ptr<Attempt>> Attempt::start(NodeLink& link, const VerifiedNode& node, ByteView body,
                                                Deadline deadline, Cancellation& cancel,
                                                const std::function<void(ByteView)>& dek_witness) {
  std::unique_ptr<Attempt> attempt(new Attempt(link, deadline, cancel));
  TIE_CHECK_OK(attempt->send(node, body, dek_witness));
  return attempt;
}

// Each operation is waited for before the next begins, so the queue never holds more than one. The call's deadline
// bounds the wait, and a node that has vanished without a word is noticed after a while of silence.
bool Attempt::wait_for_operation() {
  void* tag = nullptr;
  bool ok = false;
  for (;;) {
    auto limit = std::chrono::system_clock::now() + std::chrono::milliseconds(kSilenceMs);
    auto next = queue_.AsyncNext(&tag, &ok, limit);
    if (next != grpc::CompletionQueue::TIMEOUT) return next == grpc::CompletionQueue::GOT_EVENT && ok;
    if (vanished_ || link_.is_alive(kAliveTimeoutMs)) continue;
    vanished_ = true;
    context_.TryCancel();
  }
}

Error Attempt::finish_error() {
  grpc::Status status;
  stream_->Finish(&status, this);
  wait_for_operation();
  finished_ = true;
  if (vanished_) return {Code::kRuntimeLost, "the node at " + link_.node() + " no longer answers"};
  if (status.ok()) return {Code::kRuntimeLost, "the node closed the stream before the answer's authenticated end"};
  return error_of(status, context_, link_.node());
}

Result<void> Attempt::write(const v1::InvokeRequest& request, bool last, bool more_follows) {
  grpc::WriteOptions options;
  if (last) options.set_last_message();
  if (more_follows) options.set_buffer_hint();
  stream_->Write(request, options, this);
  if (!wait_for_operation()) return std::unexpected(finish_error());
  return {};
}

Result<void> Attempt::send_chunks(crypto::ChunkSealer& sealer, ByteView body) {
  for (size_t at = 0; at < body.size();) {
    size_t size = std::min(kSealedChunkBytes, body.size() - at);
    bool last = at + size == body.size();
    TIE_TRY(Bytes sealed, sealer.seal(body.subspan(at, size), last));
    v1::InvokeRequest message;
    message.mutable_chunk()->set_sealed(sealed.data(), sealed.size());
    message.mutable_chunk()->set_final(last);
    TIE_CHECK_OK(write(message, last, false));
    at += size;
  }
  return {};
}

Result<void> Attempt::send(const VerifiedNode& node, ByteView body, const std::function<void(ByteView)>& dek_witness) {
  key_ = node.key;
  TIE_TRY(sealed_, link_.drawn_ahead().take(key_));
  if (dek_witness) dek_witness(sealed_->dek());
  v1::ClearParameters clear;
  clear.set_workload("tie-inference");
  clear.set_key_id(node.key.key_id.data(), node.key.key_id.size());
  clear.set_encapsulated_key(sealed_->enc().data(), sealed_->enc().size());
  clear.set_sealed_dek(sealed_->sealed_dek().data(), sealed_->sealed_dek().size());
  clear.set_request_id(random_hex(16));
  clear.set_trace_id(random_hex(16));
  v1::InvokeRequest parameters;
  std::string* bytes = parameters.mutable_parameters()->mutable_clear_parameters();
  clear.SerializeToString(bytes);
  TIE_TRY(crypto::ChunkSealer sealer, sealed_->chunk_sealer(as_bytes(*bytes)));

  link_.add_credential(context_);
  stream_ = link_.stub().AsyncInvokeWorkload(&context_, &queue_, this);
  // With corked metadata the call starts with the first write and reports no completion of its own.
  v1::InvokeRequest setup;
  setup.mutable_setup()->set_protocol_version(1);
  TIE_CHECK_OK(write(setup, false, true));
  TIE_CHECK_OK(write(parameters, false, true));
  return send_chunks(sealer, body);
}

Result<void> Attempt::open_chunk(const v1::SealedChunk& chunk, v1::ResponseMessage& message) {
  if (!opener_) return fail(Code::kCorrupt, "the node sent an event before the response header");
  TIE_TRY(Bytes plain, opener_->open(as_bytes(chunk.sealed()), chunk.final()));
  bool framed = plain.size() >= crypto::kMessageLengthBytes &&
                load_u32_be(plain.data()) == plain.size() - crypto::kMessageLengthBytes;
  bool parsed = framed && message.ParseFromArray(plain.data() + crypto::kMessageLengthBytes,
                                                 int(plain.size() - crypto::kMessageLengthBytes));
  secure_zero(plain);
  if (!parsed || message.has_final() != chunk.final())
    return fail(Code::kCorrupt, "an event of the answer is malformed");
  final_seen_ = chunk.final();
  return {};
}

Result<void> Attempt::next(v1::ResponseMessage& message) {
  for (;;) {
    stream_->Read(&incoming_, this);
    if (!wait_for_operation()) return std::unexpected(finish_error());
    switch (incoming_.kind_case()) {
      case v1::InvokeResponse::kSetupAck:
        if (acknowledged_ || incoming_.setup_ack().protocol_version() != 1)
          return fail(Code::kCorrupt, "the node speaks another protocol version");
        acknowledged_ = true;
        break;
      case v1::InvokeResponse::kResponseHeader: {
        if (!acknowledged_ || opener_) return fail(Code::kCorrupt, "the node's messages came in the wrong order");
        TIE_TRY(opener_, sealed_->response_opener(as_bytes(incoming_.response_header().salt())));
        break;
      }
      case v1::InvokeResponse::kChunk:
        return open_chunk(incoming_.chunk(), message);
      default:
        return fail(Code::kCorrupt, "the node sent a message that this client does not know");
    }
  }
}

}  // namespace tie::client
