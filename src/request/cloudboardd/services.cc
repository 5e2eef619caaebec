#include "request/cloudboardd/services.h"

#include "cloudboard.grpc.pb.h"
#include "cloudboard_control.grpc.pb.h"
#include "os/log.h"
#include "request/cloudboardd/grpc_status.h"
#include "request/cloudboardd/invoke_stream.h"
#include "request/cloudboardd/watch_stream.h"

namespace tie::request::cloudboard {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// Ends a unary call with the answer or the error of a Result.
template <typename Reply>
void answer(CallbackServerContext* context, ServerUnaryReactor* reactor, Reply* reply, Result<Reply> result) {
  if (result) *reply = std::move(*result);
  reactor->Finish(result ? grpc::Status::OK : to_status(*context, result.error()));
}

class PublicService final : public v1::CloudBoard::CallbackService {
 public:
  PublicService(EventLoop& loop, Node& node) : loop_(loop), node_(node) {}

  grpc::ServerBidiReactor<v1::InvokeRequest, v1::InvokeResponse>* InvokeWorkload(
      CallbackServerContext* context) override {
    return serve_invoke(loop_, node_, context);
  }
  ServerUnaryReactor* FetchAttestation(CallbackServerContext* context, const v1::FetchAttestationRequest* request,
                                       v1::AttestationBundle* reply) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_.post([this, context, request, reply, reactor] {
      node_.fetch_attestation(
          *request, [=](Result<v1::AttestationBundle> bundle) { answer(context, reactor, reply, std::move(bundle)); });
    });
    return reactor;
  }
  grpc::ServerWriteReactor<v1::AttestationSet>* WatchAttestation(CallbackServerContext*,
                                                                 const v1::WatchAttestationRequest*) override {
    return attestation.watch();
  }
  grpc::ServerWriteReactor<v1::LoadLevel>* WatchLoadLevel(CallbackServerContext*,
                                                          const v1::WatchLoadLevelRequest*) override {
    return load.watch();
  }

  Publisher<v1::AttestationSet> attestation{kMaxWatchers};
  Publisher<v1::LoadLevel> load{kMaxWatchers};

 private:
  EventLoop& loop_;
  Node& node_;
};

class ControlService final : public v1::CloudBoardControl::CallbackService {
 public:
  ControlService(EventLoop& loop, Node& node) : loop_(loop), node_(node) {}

  grpc::ServerWriteReactor<v1::RegistrationEvent>* Register(CallbackServerContext*,
                                                            const v1::RegisterRequest* request) override {
    auto session = std::make_shared<std::string>();
    auto stream = Stream::create([this, session](const std::shared_ptr<Stream>&) {
      loop_.post([this, session] { node_.controller_lost(*session); });
    });
    loop_.post([this, stream, session, request = *request] {
      *session = node_.register_controller(request);
      keep_alive(stream, *session);
    });
    return stream.get();
  }

  ServerUnaryReactor* UpdateHealthStatus(CallbackServerContext* context, const v1::UpdateHealthStatusRequest* request,
                                         v1::UpdateHealthStatusReply* reply) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_.post([this, context, request, reply, reactor] {
      node_.update_health(*request, [=](Result<v1::UpdateHealthStatusReply> result) {
        answer(context, reactor, reply, std::move(result));
      });
    });
    return reactor;
  }

  ServerUnaryReactor* GetLoad(CallbackServerContext* context, const v1::GetLoadRequest* request,
                              v1::UpdateHealthStatusReply* reply) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_.post(
        [this, context, request, reply, reactor] { answer(context, reactor, reply, node_.load_report(*request)); });
    return reactor;
  }

  ServerUnaryReactor* RestartPrewarmed(CallbackServerContext* context, const v1::RestartPrewarmedRequest*,
                                       v1::RestartPrewarmedReply*) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_.post([this, reactor] {
      node_.restart_prewarmed();
      reactor->Finish(grpc::Status::OK);
    });
    return reactor;
  }

  ServerUnaryReactor* PublishKeys(CallbackServerContext* context, const v1::PublishKeysRequest* request,
                                  v1::PublishKeysReply* reply) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    loop_.post(
        [this, context, request, reply, reactor] { answer(context, reactor, reply, node_.publish_keys(*request)); });
    return reactor;
  }

 private:
  using Stream = WatchStream<v1::RegistrationEvent>;

  // The stream's end is found by gRPC at once when the peer dies; the event shows the peer that we live.
  void keep_alive(std::weak_ptr<Stream> weak, const std::string& session_id) {
    auto stream = weak.lock();
    if (!stream) return;
    auto event = std::make_shared<v1::RegistrationEvent>();
    event->set_session_id(session_id);
    stream->offer(event);
    loop_.after_ms(kRegistrationKeepaliveMs, [this, weak, session_id] { keep_alive(weak, session_id); });
  }

  EventLoop& loop_;
  Node& node_;
};

class ServicesImpl final : public Services {
 public:
  ServicesImpl(EventLoop& loop, Node& node) : public_(loop, node), control_(loop, node) {}
  grpc::Service* public_service() override { return &public_; }
  grpc::Service* control_service() override { return &control_; }
  NodeListener listener(std::function<void(bool)> serving) override {
    return {.attestation = [this](const v1::AttestationSet& set) { public_.attestation.publish(set); },
            .load = [this](const v1::LoadLevel& level) { public_.load.publish(level); },
            .serving = std::move(serving)};
  }

 private:
  PublicService public_;
  ControlService control_;
};

}  // namespace

std::unique_ptr<Services> make_services(EventLoop& loop, Node& node) {
  return std::make_unique<ServicesImpl>(loop, node);
}

}  // namespace tie::request::cloudboard
