#include "request/cloudboardd/node.h"

#include <algorithm>

#include "base/random.h"
#include "crypto/hkdf.h"
#include "os/log.h"

namespace tie::request::cloudboard {
namespace {

const char* state_name(v1::NodeState state) {
  switch (state) {
    case v1::READY:
      return "ready";
    case v1::BUSY:
      return "busy";
    case v1::RECYCLING:
      return "recycling";
    case v1::ERROR:
      return "error";
    default:
      return "initializing";
  }
}

}  // namespace

Result<std::unique_ptr<Node>> Node::create(EventLoop& loop, const NodeConfig& config) {
  TIE_TRY(keys::ReplayGuard guard, keys::ReplayGuard::open(config.state_dir, kMaxReplayRecords));
  return std::unique_ptr<Node>(new Node(loop, config, std::move(guard)));
}

Node::Node(EventLoop& loop, const NodeConfig& config, keys::ReplayGuard guard)
    : loop_(loop),
      config_(config),
      principal_key_(random_secret(32)),
      admission_([this](Admission::Load) { load_changed(); }),
      keys_(std::move(guard)),
      pool_(loop, config.helper_socket, config.prewarmed),
      authorizer_(loop, config.authorize_socket, kAuthorizeTimeoutMs),
      claims_(loop, config.claims_socket, kClaimsTimeoutMs) {}

void Node::start(NodeListener listener) {
  listener_ = std::move(listener);
  listener_.serving(false);
  loop_.every_ms(kSweepMs, [this] { sweep(); });
  tell_load();
}

Result<Admission::Slot> Node::admit() {
  auto slot = admission_.enter();
  if (!slot) outcomes_.count(outcome_of(slot.error().code, false, false));
  return slot;
}

std::string Node::principal_of(std::string_view credential) const {
  if (credential.empty()) return {};
  SecretBytes mac = crypto::hkdf_extract(principal_key_.view(), {as_bytes(credential)});
  return to_string(mac.view());
}

std::shared_ptr<Request> Node::begin_request(std::shared_ptr<ClientStream> stream, Admission::Slot slot,
                                             std::string principal) {
  RequestServices services{loop_, keys_, pool_, authorizer_, outcomes_, config_.cache_socket};
  auto request = std::make_shared<Request>(services, std::move(stream), std::move(slot), std::move(principal));
  requests_.push_back(request);
  request->begin();
  return request;
}

void Node::sweep() {
  int64_t now_ms = monotonic_ms();
  std::erase_if(requests_, [&](const std::weak_ptr<Request>& weak) {
    auto request = weak.lock();
    if (request) request->check_deadlines(now_ms);
    return !request || request->ended();
  });
  pool_.sweep();
  authorizer_.sweep();
  claims_.sweep();
  finish_drains();
}

std::string Node::register_controller(const v1::RegisterRequest& request) {
  session_id_ = random_hex(16);
  models_.assign(request.models().begin(), request.models().end());
  state_ = v1::INITIALIZING;
  granted_ = 0;
  TIE_LOG("cloudboardd", "the controller registered");
  apply_state();
  return session_id_;
}

void Node::controller_lost(const std::string& session_id) {
  if (session_id != session_id_) return;  // an older registration that a newer one replaced
  TIE_LOG("cloudboardd", "the controller's registration ended: not serving");
  session_id_.clear();
  state_ = v1::ERROR;
  granted_ = 0;
  apply_state();
}

void Node::update_health(const v1::UpdateHealthStatusRequest& request, HealthDone done) {
  if (session_id_.empty() || request.session_id() != session_id_)
    return done(fail(Code::kFailedPrecondition, "no registration of that session; register first"));
  state_ = request.state();
  granted_ = request.max_requests();
  apply_state();
  if (granted_ > 0) {
    return done(health_reply(admission_.load().in_flight));
  }
  drains_.push_back({monotonic_ms() + std::min<int64_t>(request.wait_ms(), kMaxDrainWaitMs),
                     [this, done = std::move(done)](uint32_t left) mutable { done(health_reply(left)); }});
  finish_drains();
}

Result<v1::UpdateHealthStatusReply> Node::load_report(const v1::GetLoadRequest& request) const {
  if (session_id_.empty() || request.session_id() != session_id_)
    return fail(Code::kFailedPrecondition, "no registration of that session; register first");
  return health_reply(admission_.load().in_flight);
}

v1::UpdateHealthStatusReply Node::health_reply(uint32_t in_flight) const {
  v1::UpdateHealthStatusReply reply;
  reply.set_in_flight(in_flight);
  outcomes_.fill(*reply.mutable_outcomes());
  return reply;
}

void Node::drain(int64_t wait_ms, std::move_only_function<void(uint32_t)> done) {
  stopping_ = true;
  apply_state();
  drains_.push_back({monotonic_ms() + wait_ms, std::move(done)});
  finish_drains();
}

void Node::finish_drains() {
  uint32_t in_flight = admission_.load().in_flight;
  int64_t now_ms = monotonic_ms();
  std::vector<Drain> finished;
  auto over = [&](const Drain& drain) { return in_flight == 0 || now_ms >= drain.deadline_ms; };
  auto first = std::stable_partition(drains_.begin(), drains_.end(), [&](const Drain& drain) { return !over(drain); });
  std::move(first, drains_.end(), std::back_inserter(finished));
  drains_.erase(first, drains_.end());
  for (Drain& drain : finished) drain.done(in_flight);
}

void Node::apply_state() {
  bool serving = !stopping_ && !session_id_.empty() && state_ == v1::READY && granted_ > 0;
  admission_.set_limit(serving ? std::min(granted_, config_.max_requests) : 0);
  listener_.serving(serving);
  if (serving && !std::exchange(serving_, true)) pool_.start();
  serving_ = serving;
  tell_load();
}

void Node::load_changed() {
  if (!load_told_.exchange(false)) return;
  loop_.post([this] {
    load_told_ = true;
    tell_load();
    finish_drains();
  });
}

v1::LoadLevel Node::load_level() const {
  v1::LoadLevel level;
  Admission::Load load = admission_.load();
  level.set_max_requests(load.limit);
  level.set_current_requests(load.in_flight);
  level.set_optimal_requests(std::max(load.limit * 3 / 4, std::min(load.limit, 1u)));
  level.set_state(state_name(state_));
  for (const std::string& model : models_) level.add_models(model);
  return level;
}

void Node::tell_load() {
  listener_.load(load_level());
}

Result<v1::PublishKeysReply> Node::publish_keys(const v1::PublishKeysRequest& request) {
  TIE_TRY(std::vector<std::string> unrestorable, keys_.publish(request));
  v1::PublishKeysReply reply;
  for (std::string& id : unrestorable) reply.add_unrestorable_key_ids(std::move(id));
  listener_.attestation(keys_.published());
  return reply;
}

void Node::fetch_attestation(const v1::FetchAttestationRequest& request, BundleDone done) {
  size_t challenge_bytes = request.challenge().size();
  if (challenge_bytes != 0 && (challenge_bytes < kMinChallengeBytes || challenge_bytes > kMaxChallengeBytes))
    return done(fail(Code::kBadRequest, "A challenge is 16 to 64 bytes."));
  if (!request.key_id().empty() && request.key_id().size() != kKeyIdBytes)
    return done(fail(Code::kBadRequest, "A key id is 32 bytes."));
  if (challenge_bytes == 0) {
    for (const auto& bundle : keys_.published().bundles())
      if (request.key_id().empty() || bundle.key_id() == request.key_id()) return done(bundle);
    Code code = request.key_id().empty() ? Code::kNotReady : Code::kKeyUnknownOrExpired;
    return done(fail(code, error_info(code).sentence));
  }
  v1::ClaimsRequest question;
  question.set_challenge(request.challenge());
  question.set_key_id(request.key_id());
  claims_.ask(std::move(question), [done = std::move(done)](Result<v1::ClaimsReply> reply) mutable {
    if (!reply) return done(std::unexpected(std::move(reply.error())));
    if (!reply->has_error()) return done(std::move(*reply->mutable_bundle()));
    Code code = static_cast<Code>(reply->error().code());
    done(fail(code, error_info(code).sentence));
  });
}

}  // namespace tie::request::cloudboard
