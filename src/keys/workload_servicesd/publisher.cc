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
  explicit Link(const std::string& path) : channel(path), stub(v1::CloudBoardControl::NewStub(channel.channel())) {}
  UnixChannel channel;
  std::unique_ptr<v1::CloudBoardControl::Stub> stub;
};

Publisher::Publisher(const std::string& control_socket, KeyRing& ring, std::function<void(const crypto::Digest&)> lost)
    : ring_(ring), lost_(std::move(lost)), link_(std::make_unique<Link>(control_socket)), boot_id_(random_hex(16)) {}

Publisher::~Publisher() = default;

void Publisher::run() {
  uint64_t told = 0, told_link = 0;
  Deadline tell_again{0};
  while (!stopping_) {
    if (!link_->channel.up()) {
      tell_again = {0};
      link_->channel.channel()->WaitForConnected(rpc::call_deadline(kLinkPollMs));
      continue;
    }
    // Read before the call: a process that took the old one's place in the middle of it is told once more.
    const uint64_t link = link_->channel.changes();
    const KeyRing::Snapshot snapshot = ring_.snapshot(monotonic_ms());
    const bool news = told != snapshot.version || told_link != link || tell_again.passed();
    if (snapshot.version != 0 && news && publish(snapshot)) {
      told = snapshot.version;
      told_link = link;
      tell_again = Deadline::in_ms(kRepublishMs);
    }
    ring_.wait_changed(snapshot.version, kLinkPollMs);
  }
}

bool Publisher::publish(const KeyRing::Snapshot& snapshot) {
  v1::PublishKeysRequest request;
  for (const auto& key : snapshot.published) *request.add_bundles() = *key->bundle;
  for (const crypto::Digest& id : snapshot.accepted) request.add_accepted_key_ids(to_string(id));
  for (const crypto::Digest& id : snapshot.revoked) request.add_revoked_key_ids(to_string(id));
  request.set_boot_id(boot_id_);
  for (const std::string& id : request.accepted_key_ids())
    if (used_.contains(id)) request.add_used_key_ids(id);
  v1::PublishKeysReply reply;
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(kPublishTimeoutMs));
  const grpc::Status status = link_->stub->PublishKeys(&context, request, &reply);
  if (!status.ok()) return false;
  used_ = {request.accepted_key_ids().begin(), request.accepted_key_ids().end()};
  if (logged_version_ != snapshot.version)
    TIE_LOG("workload_servicesd", "published {} keys, {} accepted", request.bundles_size(),
            request.accepted_key_ids_size());
  logged_version_ = snapshot.version;
  for (const std::string& id : reply.unrestorable_key_ids()) {
    auto digest = crypto::digest_from(as_bytes(id), "a key id");
    if (digest) lost_(*digest);
  }
  return true;
}

}  // namespace tie::wsd
