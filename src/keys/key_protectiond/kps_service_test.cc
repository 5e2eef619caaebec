// key_protectiond's gRPC face on a unix socket, as workload_servicesd meets it.
#include "keys/key_protectiond/kps_service.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/clock.h"
#include "base/random.h"
#include "crypto/kem.h"
#include "keys/key_protectiond/kps_server.h"
#include "keys/key_protectiond/limits.h"

namespace tie::kps {
namespace {

constexpr uint32_t kX25519 = 0x20;

class Service : public ::testing::Test {
 protected:
  void SetUp() override { start(std::nullopt); }
  ~Service() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  void start(std::optional<uint32_t> peer_uid) {
    server_.reset();
    ListenOptions options;
    options.socket = folder_ + "/kps.sock";
    options.peer_uid = peer_uid;
    auto started = KpsServer::start(options, service_);
    ASSERT_TRUE(started) << started.error().message;
    server_ = std::move(*started);
    stub_ =
        v1::KeyProtection::NewStub(grpc::CreateChannel("unix:" + options.socket, grpc::InsecureChannelCredentials()));
  }
  // The status of one call.
  template <typename Request, typename Reply>
  grpc::StatusCode call(grpc::Status (v1::KeyProtection::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                        const Request& request, Reply& reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    return ((*stub_).*method)(&context, request, &reply).error_code();
  }
  v1::GenerateKEMKeypairRequest request() const {
    v1::GenerateKEMKeypairRequest out;
    out.set_suite(kX25519);
    out.set_binding_public_key(to_string(binding_.public_key));
    out.set_lifetime_ms(60'000);
    return out;
  }
  grpc::StatusCode generate(v1::KEMKey& key) {
    return call(&v1::KeyProtection::Stub::GenerateKEMKeypair, request(), key);
  }
  uint32_t key_count() {
    v1::HeartbeatReply reply;
    EXPECT_EQ(call(&v1::KeyProtection::Stub::Heartbeat, v1::HeartbeatRequest(), reply), grpc::StatusCode::OK);
    return reply.key_count();
  }

  const std::string folder_ = [] {
    std::string path = "/dev/shm/tie-kps-" + random_hex(8);
    std::filesystem::create_directories(path);
    return path;
  }();
  const crypto::KemKeyPair binding_ = *crypto::kem_generate(crypto::KemId::kXWing);
  KeyStore store_{{monotonic_ms, wall_clock_ms}, 200};
  attestation::SoftwareSigner signer_;
  KpsService service_{store_, signer_};
  std::unique_ptr<KpsServer> server_;
  std::unique_ptr<v1::KeyProtection::Stub> stub_;
};

TEST_F(Service, EnumeratesAHundredAPageAtMost) {
  std::set<std::string> made, seen;
  for (int i = 0; i < 103; ++i) {
    v1::KEMKey key;
    ASSERT_EQ(generate(key), grpc::StatusCode::OK);
    made.insert(key.key_uuid());
  }
  v1::EnumerateKEMKeysRequest ask;
  v1::EnumerateKEMKeysReply page;
  ASSERT_EQ(call(&v1::KeyProtection::Stub::EnumerateKEMKeys, ask, page), grpc::StatusCode::OK);
  EXPECT_EQ(page.keys_size(), 100);
  for (const v1::KEMKey& key : page.keys()) seen.insert(key.key_uuid());
  ask.set_page_token(page.next_page_token());
  ASSERT_EQ(call(&v1::KeyProtection::Stub::EnumerateKEMKeys, ask, page), grpc::StatusCode::OK);
  EXPECT_EQ(page.keys_size(), 3);
  EXPECT_EQ(page.next_page_token(), "");
  for (const v1::KEMKey& key : page.keys()) {
    seen.insert(key.key_uuid());
    EXPECT_FALSE(key.has_evidence());
  }
  EXPECT_EQ(seen, made);
  ask.set_page_size(101);
  EXPECT_EQ(call(&v1::KeyProtection::Stub::EnumerateKEMKeys, ask, page), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Service, ADestroyedKeyIsUnknownToEveryCall) {
  v1::KEMKey key;
  ASSERT_EQ(generate(key), grpc::StatusCode::OK);
  EXPECT_EQ(key_count(), 1u);
  v1::DestroyKEMKeyRequest destroy;
  v1::DestroyKEMKeyReply destroyed;
  destroy.set_key_uuid(key.key_uuid());
  EXPECT_EQ(call(&v1::KeyProtection::Stub::DestroyKEMKey, destroy, destroyed), grpc::StatusCode::OK);
  EXPECT_EQ(call(&v1::KeyProtection::Stub::DestroyKEMKey, destroy, destroyed), grpc::StatusCode::NOT_FOUND);
  v1::GetKEMKeyRequest get;
  get.set_key_uuid(key.key_uuid());
  EXPECT_EQ(call(&v1::KeyProtection::Stub::GetKEMKey, get, key), grpc::StatusCode::NOT_FOUND);
  v1::DecapAndSealRequest decap;
  v1::DecapAndSealReply sealed;
  decap.set_key_uuid(key.key_uuid());
  decap.set_encapsulated_key(std::string(32, '\x09'));
  EXPECT_EQ(call(&v1::KeyProtection::Stub::DecapAndSeal, decap, sealed), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(key_count(), 0u);
}

TEST_F(Service, EvidenceAnswersTheChallengeAndABadOneLeavesNoKeyBehind) {
  v1::KEMKey key;
  auto asked = request();
  asked.set_challenge(std::string(32, 'c'));
  ASSERT_EQ(call(&v1::KeyProtection::Stub::GenerateKEMKeypair, asked, key), grpc::StatusCode::OK);
  const attestation::Evidence evidence = attestation::evidence_from_proto(key.evidence());
  EXPECT_TRUE(attestation::check_evidence(evidence, "the"));
  EXPECT_EQ(to_string(evidence.challenge), asked.challenge());
  asked.set_challenge("short");
  EXPECT_EQ(call(&v1::KeyProtection::Stub::GenerateKEMKeypair, asked, key), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(key_count(), 1u);
}

TEST_F(Service, TheBootIdStaysWhileTheProcessLives) {
  v1::HeartbeatReply first, second;
  call(&v1::KeyProtection::Stub::Heartbeat, v1::HeartbeatRequest(), first);
  call(&v1::KeyProtection::Stub::Heartbeat, v1::HeartbeatRequest(), second);
  EXPECT_FALSE(first.boot_id().empty());
  EXPECT_EQ(first.boot_id(), second.boot_id());
}

TEST_F(Service, APeerOfAnotherUserReachesNoControlCall) {
  start(::geteuid() + 1);
  v1::KEMKey key;
  EXPECT_EQ(generate(key), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(store_.count(), 0u);
}

}  // namespace
}  // namespace tie::kps
