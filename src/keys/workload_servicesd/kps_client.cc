#include "keys/workload_servicesd/kps_client.h"

#include <atomic>

#include "keys/workload_servicesd/limits.h"
#include "keys/workload_servicesd/tls_channel.h"
#include "keys/workload_servicesd/unix_channel.h"
#include "kps.grpc.pb.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::wsd {
namespace {

// Link: UnixChannel or TlsChannel.
template <typename Link>
class KpsClient final : public KeyService {
 public:
  explicit KpsClient(std::unique_ptr<Link> link) : link_(std::move(link)) {}

  Result<MadeKey> generate(crypto::KemId kem, ByteView binding_public_key, int64_t lifetime_ms,
                           ByteView challenge) override {
    v1::GenerateKEMKeypairRequest request;
    request.set_suite(static_cast<uint16_t>(kem));
    request.set_binding_public_key(to_string(binding_public_key));
    request.set_lifetime_ms(static_cast<uint64_t>(lifetime_ms));
    request.set_challenge(to_string(challenge));
    v1::KEMKey reply;
    TIE_CHECK_OK(call(&v1::KeyProtection::Stub::GenerateKEMKeypair, request, reply));
    return MadeKey{reply.key_uuid(), to_bytes(reply.public_key()), reply.expires_unix_ms(),
                   attestation::evidence_from_proto(reply.evidence())};
  }

  Result<SealedSecret> decap_and_seal(const std::string& uuid, ByteView enc) override {
    v1::DecapAndSealRequest request;
    request.set_key_uuid(uuid);
    request.set_encapsulated_key(to_string(enc));
    v1::DecapAndSealReply reply;
    TIE_CHECK_OK(call(&v1::KeyProtection::Stub::DecapAndSeal, request, reply));
    return SealedSecret{to_bytes(reply.binding_enc()), to_bytes(reply.sealed_secret())};
  }

  Result<attestation::Evidence> evidence(const std::string& uuid, ByteView challenge) override {
    v1::GetKEMKeyRequest request;
    request.set_key_uuid(uuid);
    request.set_challenge(to_string(challenge));
    v1::KEMKey reply;
    TIE_CHECK_OK(call(&v1::KeyProtection::Stub::GetKEMKey, request, reply));
    return attestation::evidence_from_proto(reply.evidence());
  }

  Result<std::vector<std::string>> enumerate() override {
    std::vector<std::string> out;
    v1::EnumerateKEMKeysRequest request;
    for (size_t page = 0; page < kMaxKeyPages; ++page) {
      v1::EnumerateKEMKeysReply reply;
      TIE_CHECK_OK(call(&v1::KeyProtection::Stub::EnumerateKEMKeys, request, reply));
      for (const v1::KEMKey& key : reply.keys()) out.push_back(key.key_uuid());
      if (reply.next_page_token().empty()) break;
      request.set_page_token(reply.next_page_token());
    }
    return out;
  }

  Result<void> destroy(const std::string& uuid) override {
    v1::DestroyKEMKeyRequest request;
    request.set_key_uuid(uuid);
    v1::DestroyKEMKeyReply reply;
    return call(&v1::KeyProtection::Stub::DestroyKEMKey, request, reply);
  }

  Result<std::string> heartbeat() override {
    v1::HeartbeatReply reply;
    TIE_CHECK_OK(call(&v1::KeyProtection::Stub::Heartbeat, v1::HeartbeatRequest(), reply));
    if (reply.boot_id().empty()) return fail(Code::kCorrupt, "key_protectiond states no boot id");
    return reply.boot_id();
  }

  bool link_changed() override {
    const uint64_t changes = link_->changes();
    return seen_changes_.exchange(changes) != changes;
  }

 private:
  template <typename Method, typename Request, typename Reply>
  Result<void> call(Method method, const Request& request, Reply& reply) {
    const std::shared_ptr<grpc::Channel> channel = link_->channel();
    if (channel == nullptr) return fail(Code::kNotReady, "key_protectiond: not connected");
    grpc::ClientContext context;
    context.set_deadline(rpc::call_deadline(kKeyServiceTimeoutMs));
    v1::KeyProtection::Stub stub(channel);
    const grpc::Status status = (stub.*method)(&context, request, &reply);
    if (status.ok()) return {};
    return std::unexpected(rpc::to_error(status).context("key_protectiond"));
  }

  const std::unique_ptr<Link> link_;
  std::atomic<uint64_t> seen_changes_ = 0;
};

}  // namespace

std::unique_ptr<KeyService> connect_key_service(const std::string& socket_path) {
  return std::make_unique<KpsClient<UnixChannel>>(std::make_unique<UnixChannel>(socket_path));
}

Result<std::unique_ptr<KeyService>> connect_remote_key_service(const std::string& address,
                                                               const keys::TlsIdentity& identity) {
  TIE_TRY(keys::TlsContext tls, keys::TlsContext::client(identity));
  return std::make_unique<KpsClient<TlsChannel>>(std::make_unique<TlsChannel>(address, std::move(tls)));
}

}  // namespace tie::wsd
