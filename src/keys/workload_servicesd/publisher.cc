#include "keys/workload_servicesd/publisher.h"

#include "base/clock.h"
#include "base/random.h"
#include "cloudboard_control.grpc.pb.h"
#include "keys/workload_servicesd/limits.h"
#include "keys/workload_servicesd/unix_channel.h"
#include "os/log.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::wsd {

struct Publisher::Link {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::CloudBoardControl::Stub> stub;
};

Publisher::Publisher(const std::string& control_socket, KeyRing& ring, std::function<void(const crypto::Digest&)> lost)
    : ring_(ring), lost_(std::move(lost)), link_(std::make_unique<Link>()), boot_id_(random_hex(16)) {
  link_->channel = unix_channel(control_socket);
  link_->stub = v1::CloudBoardControl::NewStub(link_->channel);
}

Publisher::~Publisher() = default;

void Publisher::run() {
  uint64_t told = 0;
  bool told_this_link = false;
  while (!stopping_) {
    if (link_->channel->GetState(/*try_to_connect=*/true) != GRPC_CHANNEL_READY) {
      told_this_link = false;  // whoever answers next may be a new process, which knows nothing
      link_->channel->WaitForConnected(rpc::call_deadline(kLinkPollMs));
      continue;
    }
    const KeyRing::Snapshot snapshot = ring_.snapshot(monotonic_ms());
    if (told_this_link && told == snapshot.version) {
      ring_.wait_changed(told, kLinkPollMs);
      continue;
    }
    told_this_link = publish(snapshot);
    told = snapshot.version;
    if (!told_this_link) ring_.wait_changed(told, kLinkPollMs);
  }
}

bool Publisher::publish(const KeyRing::Snapshot& snapshot) {
  v1::PublishKeysRequest request;
  for (const auto& key : snapshot.published) *request.add_bundles() = *key->bundle;
  for (const crypto::Digest& id : snapshot.accepted) request.add_accepted_key_ids(to_string(id));
  for (const crypto::Digest& id : snapshot.revoked) request.add_revoked_key_ids(to_string(id));
  request.set_boot_id(boot_id_);
  v1::PublishKeysReply reply;
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(kPublishTimeoutMs));
  const grpc::Status status = link_->stub->PublishKeys(&context, request, &reply);
  if (!status.ok()) return false;
  TIE_LOG("workload_servicesd", "published {} keys, {} accepted", request.bundles_size(), request.accepted_key_ids_size());
  for (const std::string& id : reply.unrestorable_key_ids()) {
    auto digest = crypto::digest_from(as_bytes(id), "a key id");
    if (digest) lost_(*digest);
  }
  return true;
}

}  // namespace tie::wsd
