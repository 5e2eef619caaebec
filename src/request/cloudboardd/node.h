// cloudboardd's state and decisions, without gRPC: who is registered, how much is let in, which keys are published,
// which requests live. All of it belongs to the event loop's thread, except what says otherwise; it outlives the loop's
// last run(). The gRPC services (public_service, control_service) are thin shells that post to the loop. Source: spec,
// "CloudBoard"; ARCHITECTURE.md, "Lifecycles".
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/secret_bytes.h"
#include "request/cloudboardd/request.h"

namespace tie::request::cloudboard {

struct NodeConfig {
  std::string helper_socket, authorize_socket, claims_socket, state_dir;
  std::string cache_socket;  // cache_stored; empty: no request keeps anything
  size_t prewarmed = 3;
  uint32_t max_requests = 64;  // whatever the controller says, never more
};

// Whom the node tells about changes. Called on the loop's thread.
struct NodeListener {
  std::function<void(const v1::AttestationSet&)> attestation = [](const v1::AttestationSet&) {};
  std::function<void(const v1::LoadLevel&)> load = [](const v1::LoadLevel&) {};
  std::function<void(bool serving)> serving = [](bool) {};
};

class Node {
 public:
  static Result<std::unique_ptr<Node>> create(EventLoop& loop, const NodeConfig& config);
  void start(NodeListener listener);

  // Any thread: the first thing done for a request.
  Result<Admission::Slot> admit();
  // Any thread. Empty for no credential; else a MAC under a key of this boot, so that the credential itself goes no
  // further.
  std::string principal_of(std::string_view credential) const;

  std::shared_ptr<Request> begin_request(std::shared_ptr<ClientStream> stream, Admission::Slot slot,
                                         std::string principal);

  // tie-controllerd. register_controller replaces an earlier registration; the returned session id is needed for
  // update_health.
  std::string register_controller(const v1::RegisterRequest& request);
  void controller_lost(const std::string& session_id);
  using HealthDone = std::move_only_function<void(Result<v1::UpdateHealthStatusReply>)>;
  void update_health(const v1::UpdateHealthStatusRequest& request, HealthDone done);
  // The same report at any moment, in any state.
  Result<v1::UpdateHealthStatusReply> load_report(const v1::GetLoadRequest& request) const;
  void restart_prewarmed() { pool_.restart(); }

  // workload_servicesd.
  Result<v1::PublishKeysReply> publish_keys(const v1::PublishKeysRequest& request);

  using BundleDone = std::move_only_function<void(Result<v1::AttestationBundle>)>;
  void fetch_attestation(const v1::FetchAttestationRequest& request, BundleDone done);

  // Lets nothing new in; calls back when nothing is in flight or at the deadline.
  void drain(int64_t wait_ms, std::move_only_function<void(uint32_t in_flight)> done);
  v1::LoadLevel load_level() const;

 private:
  struct Drain {
    int64_t deadline_ms;
    std::move_only_function<void(uint32_t)> done;
  };
  Node(EventLoop& loop, const NodeConfig& config, keys::ReplayGuard guard);
  void sweep();
  void load_changed();  // any thread
  void apply_state();
  void tell_load();
  v1::UpdateHealthStatusReply health_reply(uint32_t in_flight) const;
  void finish_drains();

  EventLoop& loop_;
  NodeConfig config_;
  SecretBytes principal_key_;
  NodeListener listener_;
  Admission admission_;
  std::atomic<bool> load_told_ = true;
  KeyBoard keys_;
  PairPool pool_;
  OutcomeCounts outcomes_;
  Authorizer authorizer_;
  FramedCaller<v1::ClaimsRequest, v1::ClaimsReply> claims_;
  std::vector<std::weak_ptr<Request>> requests_;
  std::vector<Drain> drains_;
  std::string session_id_;
  std::vector<std::string> models_;
  v1::NodeState state_ = v1::INITIALIZING;
  uint32_t granted_ = 0;  // by the controller
  bool stopping_ = false, serving_ = false;
};

}  // namespace tie::request::cloudboard
