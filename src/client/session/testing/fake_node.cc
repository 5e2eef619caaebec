#include "client/session/testing/fake_node.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/byte_buckets.h"
#include "base/clock.h"
#include "base/random.h"
#include "cloudboard.grpc.pb.h"
#include "crypto/message_splitter.h"
#include "crypto/request_open.h"
#include "crypto/sha256.h"
#include "keys/attestation/claims.h"
#include "keys/attestation/evidence.h"

namespace tie::client::testing {

crypto::Digest fake_release() {
  crypto::Digest digest;
  digest.fill(0xaa);
  return digest;
}

namespace {

using Stream = grpc::ServerReaderWriter<v1::InvokeResponse, v1::InvokeRequest>;

grpc::Status status_of(grpc::ServerContext& context, Code code, const std::string& message) {
  context.AddTrailingMetadata("tie-error", error_info(code).name);
  return {static_cast<grpc::StatusCode>(error_info(code).grpc_status), message};
}

struct Key {
  crypto::KemKeyPair pair;
  attestation::KemClaims claims;
  Bytes id;
};

Key new_key(const std::vector<std::string>& models) {
  Key key{*crypto::kem_generate(crypto::KemId::kXWing), {}, {}};
  key.claims.suite = uint32_t(key.pair.id);
  key.claims.kem_public_key = key.pair.public_key;
  key.claims.binding_public_key = crypto::kem_generate(crypto::KemId::kXWing)->public_key;
  key.claims.expires_unix_ms = uint64_t(wall_clock_ms()) + 3600'000;
  for (const std::string& name : models) key.claims.model_ids.push_back(crypto::sha256(as_bytes(name)));
  std::sort(key.claims.model_ids.begin(), key.claims.model_ids.end());
  attestation::Digest id = attestation::key_id(key.claims);
  key.id.assign(id.begin(), id.end());
  return key;
}

void fill_bundle(const Key& key, const std::vector<std::string>& models, ByteView challenge,
                 v1::AttestationBundle& bundle) {
  static const attestation::SoftwareSigner signer;
  const attestation::KemClaims& claims = key.claims;
  auto* kem = bundle.mutable_kem();
  kem->set_suite(claims.suite);
  kem->set_kem_public_key(claims.kem_public_key.data(), claims.kem_public_key.size());
  kem->set_binding_public_key(claims.binding_public_key.data(), claims.binding_public_key.size());
  kem->set_expires_unix_ms(claims.expires_unix_ms);
  for (const auto& id : claims.model_ids) kem->add_model_ids(id.data(), id.size());
  bundle.set_key_id(key.id.data(), key.id.size());
  attestation::WorkloadClaims workload{claims.binding_public_key, fake_release(), claims.model_ids, {}};
  attestation::KeyServiceClaims service{claims.kem_public_key, claims.suite, claims.binding_public_key,
                                        claims.expires_unix_ms, "uuid"};
  attestation::to_proto(*signer.state(attestation::encode(workload), challenge), *bundle.mutable_workload());
  attestation::to_proto(*signer.state(attestation::encode(service), challenge), *bundle.mutable_key_service());
  for (const std::string& name : models) {
    auto* model = bundle.add_models();
    model->set_name(name);
    auto id = crypto::sha256(as_bytes(name));
    model->set_model_id(id.data(), id.size());
    model->set_context_tokens(2048);
    model->set_architecture("llama");
  }
}

class Call final : public FakeCall {
 public:
  Call(grpc::ServerContext& context, Stream& stream, crypto::ResponseSealer sealer, v1::InferenceRequest request)
      : context_(context), stream_(stream), sealer_(std::move(sealer)), request_(std::move(request)) {}

  const v1::InferenceRequest& request() const override { return request_; }
  bool cancelled() const override { return context_.IsCancelled(); }

  bool send(v1::InferenceEvent event) override {
    v1::ResponseMessage message;
    *message.mutable_event() = std::move(event);
    return send_message(message, false);
  }
  bool send_text(const std::string& text) override {
    v1::InferenceEvent event;
    event.set_text(text);
    return send(std::move(event));
  }
  void finish_with(v1::FinalSummary::Status status) override {
    v1::ResponseMessage message;
    message.mutable_final()->set_status(status);
    send_message(message, true);
  }
  void refuse(Code code, const std::string& message) override { status = status_of(context_, code, message); }
  void cut() override { status = grpc::Status::OK; }
  void corrupt_next() override { corrupt_ = true; }

  grpc::Status status = grpc::Status::OK;

 private:
  bool send_message(v1::ResponseMessage& message, bool final) {
    if (auto filler = filler_content_size(4 + message.ByteSizeLong())) message.set_filler(std::string(*filler, '\0'));
    std::string body = message.SerializeAsString();
    Bytes sealed = *sealer_.seal(crypto::frame_message(as_bytes(body)), final);
    if (corrupt_) sealed[sealed.size() / 2] ^= 1;
    v1::InvokeResponse response;
    response.mutable_chunk()->set_sealed(sealed.data(), sealed.size());
    response.mutable_chunk()->set_final(final);
    return stream_.Write(response);
  }

  grpc::ServerContext& context_;
  Stream& stream_;
  crypto::ResponseSealer sealer_;
  v1::InferenceRequest request_;
  bool corrupt_ = false;
};

}  // namespace

struct FakeNode::Impl final : v1::CloudBoard::Service {
  grpc::Status FetchAttestation(grpc::ServerContext* context, const v1::FetchAttestationRequest* request,
                                v1::AttestationBundle* bundle) override {
    std::lock_guard lock(mutex);
    ++bundles;
    note_credential(*context);
    if (withheld > 0) {
      --withheld;
      return status_of(*context, withheld_as, "no bundle yet");
    }
    fill_bundle(key, models, as_bytes(request->challenge()), *bundle);
    return grpc::Status::OK;
  }

  grpc::Status InvokeWorkload(grpc::ServerContext* context, Stream* stream) override {
    grpc::Status status = serve(*context, *stream);
    std::lock_guard lock(mutex);
    if (context->IsCancelled()) ++cancelled;
    return status;
  }

  void note_credential(const grpc::ServerContext& context) {
    auto given = context.client_metadata().find("authorization");
    bool none = given == context.client_metadata().end();
    credentials.push_back(none ? "" : std::string(given->second.data(), given->second.size()));
  }

  grpc::Status serve(grpc::ServerContext& context, Stream& stream) {
    v1::InvokeRequest message;
    if (!stream.Read(&message) || !message.has_setup())
      return status_of(context, Code::kFailedPrecondition, "setup first");
    if (!stream.Read(&message) || !message.has_parameters())
      return status_of(context, Code::kFailedPrecondition, "parameters second");
    std::string clear_bytes = message.parameters().clear_parameters();
    v1::ClearParameters clear;
    clear.ParseFromString(clear_bytes);
    Script run;
    crypto::KemKeyPair pair;
    {
      std::lock_guard lock(mutex);
      ++requests;
      note_credential(context);
      enc_seen.push_back(clear.encapsulated_key());
      if (refusals > 0) {
        --refusals;
        return status_of(context, refusal, error_info(refusal).sentence);
      }
      if (clear.key_id() != as_text(key.id)) return status_of(context, Code::kKeyUnknownOrExpired, "unknown key");
      pair = {key.pair.id, key.pair.private_key.clone(), key.pair.public_key};
      run = script;
    }
    auto secret = crypto::kem_decapsulate(pair.id, pair.private_key.view(), as_bytes(clear.encapsulated_key()));
    if (!secret) return status_of(context, Code::kUnauthenticated, "no");
    auto opened =
        crypto::OpenedRequest::open({.kem = pair.id}, as_bytes(clear.key_id()), as_bytes(clear.encapsulated_key()),
                                    secret->view(), as_bytes(clear.sealed_dek()));
    if (!opened) return status_of(context, Code::kUnauthenticated, opened.error().message);
    return answer(context, stream, *opened, clear_bytes, run);
  }

  grpc::Status answer(grpc::ServerContext& context, Stream& stream, crypto::OpenedRequest& opened,
                      const std::string& clear_bytes, const Script& run) {
    v1::InvokeResponse reply;
    reply.mutable_setup_ack()->set_protocol_version(1);
    stream.Write(reply);
    auto sealer = opened.response_sealer();
    reply.mutable_response_header()->set_salt(sealer->salt().data(), sealer->salt().size());
    stream.Write(reply);
    auto opener = opened.chunk_opener(as_bytes(clear_bytes));
    crypto::MessageSplitter splitter(crypto::kMaxMessageBytes);
    v1::InvokeRequest message;
    size_t size = 0;
    while (!opener->finished()) {
      if (!stream.Read(&message) || !message.has_chunk()) return status_of(context, Code::kCancelled, "gone");
      auto plain = opener->open(as_bytes(message.chunk().sealed()), message.chunk().final());
      if (!plain) return status_of(context, Code::kCorrupt, plain.error().message);
      size += plain->size();
      if (!splitter.feed(*plain)) return status_of(context, Code::kBadRequest, "framing");
    }
    auto body = splitter.next();
    v1::BodyMessage parsed;
    if (!body || !parsed.ParseFromArray(body->data(), int(body->size())))
      return status_of(context, Code::kBadRequest, "body");
    {
      std::lock_guard lock(mutex);
      sizes.push_back(size);
    }
    Call call(context, stream, std::move(*sealer), parsed.request());
    run(call);
    return call.status;
  }

  mutable std::mutex mutex;
  Script script;
  std::vector<std::string> models{"test-model"};
  Key key = new_key(models);
  int requests = 0, bundles = 0, cancelled = 0, refusals = 0;
  int withheld = 0;
  Code withheld_as = Code::kNotReady;
  Code refusal = Code::kOverloaded;
  std::vector<std::string> enc_seen, credentials;
  std::vector<size_t> sizes;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

FakeNode::FakeNode(Script script, int port) : impl_(std::make_unique<Impl>()) {
  impl_->script = std::move(script);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &impl_->port);
  builder.RegisterService(impl_.get());
  impl_->server = builder.BuildAndStart();
}
FakeNode::~FakeNode() {
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
}

std::string FakeNode::address() const {
  return "127.0.0.1:" + std::to_string(impl_->port);
}
void FakeNode::set_script(Script script) {
  std::lock_guard lock(impl_->mutex);
  impl_->script = std::move(script);
}
void FakeNode::rotate_key() {
  std::lock_guard lock(impl_->mutex);
  impl_->key = new_key(impl_->models);
}
void FakeNode::set_models(std::vector<std::string> names) {
  std::lock_guard lock(impl_->mutex);
  impl_->models = std::move(names);
  impl_->key = new_key(impl_->models);
}
void FakeNode::refuse_next(int count, Code code) {
  std::lock_guard lock(impl_->mutex);
  impl_->refusals = count;
  impl_->refusal = code;
}
void FakeNode::withhold_bundles(int count, Code code) {
  std::lock_guard lock(impl_->mutex);
  impl_->withheld = count;
  impl_->withheld_as = code;
}
int FakeNode::requests() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->requests;
}
int FakeNode::bundles() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->bundles;
}
int FakeNode::cancelled() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->cancelled;
}
std::vector<std::string> FakeNode::encapsulated_keys() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->enc_seen;
}
std::vector<std::string> FakeNode::credentials() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->credentials;
}
std::vector<size_t> FakeNode::body_sizes() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->sizes;
}

namespace {

class Trusting final : public NodeVerifier {
 public:
  Result<VerifiedNode> verify(const v1::AttestationBundle& bundle, ByteView) const override { return facts_of(bundle); }
  Inspection inspect(const v1::AttestationBundle& bundle, ByteView challenge) const override {
    return {*verify(bundle, challenge), {{true, "trusted by a test"}}, {}};
  }
};

class Refusing final : public NodeVerifier {
 public:
  Result<VerifiedNode> verify(const v1::AttestationBundle&, ByteView) const override {
    return fail(Code::kPermissionDenied, "the policy refuses this node: its release is not pinned");
  }
  Inspection inspect(const v1::AttestationBundle& bundle, ByteView challenge) const override {
    return {*facts_of(bundle), {{false, "its release is not pinned"}}, verify(bundle, challenge).error()};
  }
};

}  // namespace

std::unique_ptr<NodeVerifier> trusting_verifier() {
  return std::make_unique<Trusting>();
}
std::unique_ptr<NodeVerifier> refusing_verifier() {
  return std::make_unique<Refusing>();
}

namespace {

std::vector<std::string> words_of(const v1::InferenceRequest& request) {
  std::string text = request.raw_text();
  if (request.has_conversation() && request.conversation().messages_size() > 0) {
    const v1::Message& last = *request.conversation().messages().rbegin();
    text = last.parts_size() > 0 ? last.parts(0).text() : "";
  }
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find(' ', at + 1);
    if (end == std::string::npos) end = text.size();
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

void add_logprob(v1::InferenceEvent& event, const std::string& word, int top) {
  auto* entry = event.add_logprobs();
  entry->set_token_id(7);
  entry->set_token_bytes(word);
  entry->set_logprob(-0.5f);
  for (int i = 0; i < top; ++i) {
    auto* other = entry->add_top();
    other->set_token_id(7 + i);
    other->set_token_bytes(i == 0 ? word : "\xf0\x9f");
    other->set_logprob(-0.5f - float(i));
  }
}

}  // namespace

void echo_script(FakeCall& call) {
  const v1::SamplingParams& sampling = call.request().sampling();
  std::vector<std::string> words = words_of(call.request());
  size_t limit = sampling.has_max_tokens() ? size_t(sampling.max_tokens()) : words.size();
  int samples = std::max(1, sampling.n());
  v1::InferenceEvent first;
  first.set_served_model_id(std::string(64, '6'));
  call.send(first);
  for (int sample = 0; sample < samples; ++sample) {
    for (size_t i = 0; i < std::min(limit, words.size()); ++i) {
      v1::InferenceEvent event;
      event.set_sample_index(sample);
      event.set_text(words[i]);
      if (sampling.logprobs()) add_logprob(event, words[i], sampling.top_logprobs());
      if (!call.send(std::move(event))) return;
    }
    v1::InferenceEvent end;
    end.set_sample_index(sample);
    end.set_finish_reason(limit < words.size() ? "length" : "stop");
    if (sample + 1 == samples) {
      end.mutable_usage()->set_prompt_tokens(11);
      end.mutable_usage()->set_completion_tokens(uint32_t(std::min(limit, words.size()) * size_t(samples)));
      end.mutable_usage()->set_cached_tokens(3);
    }
    call.send(std::move(end));
  }
  call.finish_with(v1::FinalSummary::OK);
}

}  // namespace tie::client::testing
