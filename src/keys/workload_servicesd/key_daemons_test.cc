// The two key daemons as real processes, between a stand-in for cloudboardd and a helper that may lie.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/random.h"
#include "cloudboard_control.grpc.pb.h"
#include "crypto/request_open.h"
#include "crypto/request_seal.h"
#include "keys/attestation/verify.h"
#include "keys/tls_link/testing/certificates.h"
#include "os/framed_message.h"
#include "os/process.h"
#include "supervision/rpc/unix_grpc.h"
#include "wsd.pb.h"

extern char** environ;

namespace tie::wsd {
namespace {

namespace fs = std::filesystem;

class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments) {
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    if (::posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ) != 0) pid_ = -1;
  }
  ~Process() {
    if (pid_ > 0) (void)end(SIGKILL);
  }
  // The exit status, or 128 + signal; -1 when it does not end within 5 s of the signal.
  int end(int signal) {
    ::kill(pid_, signal);
    for (int i = 0; i < 500; ++i) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

// Keeps what workload_servicesd published last.
class Control final : public v1::CloudBoardControl::Service {
 public:
  grpc::Status PublishKeys(grpc::ServerContext*, const v1::PublishKeysRequest* request,
                           v1::PublishKeysReply* reply) override {
    std::lock_guard lock(mutex);
    last = *request;
    ++count;
    for (const std::string& id : unrestorable) reply->add_unrestorable_key_ids(id);
    unrestorable.clear();
    return grpc::Status::OK;
  }
  std::mutex mutex;
  v1::PublishKeysRequest last;
  std::vector<std::string> unrestorable;
  int count = 0;
};

class KeyDaemons : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("tiek" + random_hex(4));
    fs::create_directories(root_ / "assets/models/m");
    std::ofstream(root_ / "assets/models/m/weights.gguf") << "weights";
    std::ofstream(root_ / "assets/models/m/tokenizer.img") << "tokenizer";
    std::ofstream(root_ / "manifest") << std::string(64, 'a') + "  libexec/tie/cloudboardd\n";
    policy_.release_ids = {crypto::sha256(as_bytes(std::string(64, 'a') + "  libexec/tie/cloudboardd\n"))};
    policy_.accepted_kinds = {"software"};
    start_cloudboardd();
    start_kps();
  }
  void TearDown() override {
    wsd_.reset();
    kps_.reset();
    if (cloudboardd_) cloudboardd_->stop(Deadline::in_ms(0));
    fs::remove_all(root_);
  }
  std::string at(const char* name) const { return root_ / name; }
  void start_kps() {
    kps_ = std::make_unique<Process>(
        std::vector<std::string>{std::string(TIE_BINARY_DIR "/bin/key_protectiond"), "--socket", at("kps.sock")});
  }
  void start_wsd(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {TIE_BINARY_DIR "/bin/workload_servicesd",
                                          "--decap-socket",
                                          at("decap.sock"),
                                          "--authorize-socket",
                                          at("authorize.sock"),
                                          "--claims-socket",
                                          at("claims.sock"),
                                          "--control-socket",
                                          at("control.sock"),
                                          "--release-manifest",
                                          at("manifest"),
                                          "--assets",
                                          at("assets")};
    if (std::find(more.begin(), more.end(), "--kps-address") == more.end())
      more.insert(more.end(), {"--kps-socket", at("kps.sock")});
    arguments.insert(arguments.end(), more.begin(), more.end());
    wsd_ = std::make_unique<Process>(arguments);
  }
  void start_cloudboardd() {
    auto server = rpc::UnixGrpcServer::start(at("control.sock"), {&control_});
    ASSERT_TRUE(server) << server.error().message;
    cloudboardd_.emplace(std::move(*server));
  }
  // The newest published bundle once `good` holds of it.
  template <typename Good>
  v1::PublishKeysRequest wait_published(Good good) {
    for (int i = 0; i < 800; ++i) {
      {
        std::lock_guard lock(control_.mutex);
        if (control_.count != 0 && control_.last.bundles_size() != 0 && good(control_.last)) return control_.last;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "nothing fitting was published within 8 s";
    return {};
  }
  attestation::VerifiedNode wait_node() {
    const auto published = wait_published([](const auto&) { return true; });
    if (published.bundles_size() == 0) return {};
    return verified(published.bundles(0));
  }
  attestation::VerifiedNode verified(const v1::AttestationBundle& bundle) {
    auto node = attestation::verify_bundle(bundle, policy_, {std::nullopt, static_cast<uint64_t>(wall_clock_ms())});
    EXPECT_TRUE(node) << node.error().message;
    return node ? *node : attestation::VerifiedNode();
  }
  template <typename Reply, typename Request>
  Result<Reply> ask(const char* socket, const Request& request) {
    TIE_TRY(const os::Fd fd, os::connect_unix(at(socket), Deadline::in_ms(2000)));
    TIE_CHECK_OK(os::send_message(fd.get(), request, Deadline::in_ms(2000)));
    TIE_TRY(auto reply, os::receive_message<Reply>(fd.get(), 65536, Deadline::in_ms(7000)));
    return reply.message;
  }
  v1::ErrorCode authorize(ByteView ticket, ByteView enc, ByteView key_id) {
    v1::AuthorizeRequest request;
    request.set_ticket(to_string(ticket));
    request.set_key_id(to_string(key_id));
    request.set_enc_sha256(to_string(crypto::sha256(enc)));
    auto reply = ask<v1::AuthorizeReply>("authorize.sock", request);
    EXPECT_TRUE(reply);
    return reply ? reply->error().code() : v1::INTERNAL;
  }
  v1::DecapReply decap(ByteView ticket, ByteView enc, ByteView key_id) {
    v1::DecapRequest request;
    request.set_ticket(to_string(ticket));
    request.set_key_id(to_string(key_id));
    request.set_encapsulated_key(to_string(enc));
    auto reply = ask<v1::DecapReply>("decap.sock", request);
    EXPECT_TRUE(reply);
    return reply ? *reply : v1::DecapReply();
  }

  fs::path root_;
  attestation::Policy policy_;
  Control control_;
  std::optional<rpc::UnixGrpcServer> cloudboardd_;
  std::unique_ptr<Process> kps_, wsd_;
  const Bytes ticket_ = Bytes(32, 4);
};

TEST_F(KeyDaemons, ASealedRequestIsOpenedOnceThroughTheTicket) {
  start_wsd();
  const auto node = wait_node();
  auto sent = crypto::SealedRequest::create(node.key);
  ASSERT_TRUE(sent);
  const Bytes parameters = to_bytes("parameters");
  const Bytes chunk = *sent->chunk_sealer(parameters)->seal(as_bytes("hello"), true);

  ASSERT_EQ(authorize(ticket_, sent->enc(), node.key.key_id), v1::OK);
  const auto reply = decap(ticket_, sent->enc(), node.key.key_id);
  ASSERT_FALSE(reply.has_error()) << reply.error().message();
  auto opened = crypto::OpenedRequest::open(node.key.suite, node.key.key_id, sent->enc(),
                                            as_bytes(reply.shared_secret()), sent->sealed_dek());
  ASSERT_TRUE(opened);
  EXPECT_EQ(to_string(*opened->chunk_opener(parameters)->open(chunk, true)), "hello");

  EXPECT_EQ(decap(ticket_, sent->enc(), node.key.key_id).error().code(), v1::UNAUTHENTICATED) << "used";
  EXPECT_EQ(authorize(Bytes(32, 5), sent->enc(), node.key.key_id), v1::REPLAYED);
}

TEST_F(KeyDaemons, RefuseWithoutATicketWithAnothersAndWithAnExpiredOne) {
  start_wsd({"--ticket-ttl-ms", "300"});
  const auto node = wait_node();
  auto sent = crypto::SealedRequest::create(node.key), other = crypto::SealedRequest::create(node.key);
  EXPECT_EQ(decap(ticket_, sent->enc(), node.key.key_id).error().code(), v1::UNAUTHENTICATED) << "no ticket";
  ASSERT_EQ(authorize(ticket_, sent->enc(), node.key.key_id), v1::OK);
  EXPECT_EQ(decap(ticket_, other->enc(), node.key.key_id).error().code(), v1::UNAUTHENTICATED) << "another request's";
  EXPECT_EQ(decap(ticket_, sent->enc(), node.key.key_id).error().code(), v1::UNAUTHENTICATED) << "misused, so used";
  ASSERT_EQ(authorize(Bytes(32, 6), sent->enc(), node.key.key_id), v1::OK);
  std::this_thread::sleep_for(std::chrono::milliseconds(350));
  EXPECT_EQ(decap(Bytes(32, 6), sent->enc(), node.key.key_id).error().code(), v1::UNAUTHENTICATED) << "expired";
  ASSERT_EQ(authorize(Bytes(32, 7), sent->enc(), node.key.key_id), v1::OK) << "an honest retry still opens";
  EXPECT_FALSE(decap(Bytes(32, 7), sent->enc(), node.key.key_id).has_error());
}

TEST_F(KeyDaemons, TheSocketsTakeOnlyTheirOwnRequests) {
  start_wsd();
  const auto node = wait_node();
  auto sent = crypto::SealedRequest::create(node.key);
  v1::AuthorizeRequest authorize_request;
  authorize_request.set_ticket(to_string(ticket_));
  authorize_request.set_key_id(to_string(node.key.key_id));
  authorize_request.set_enc_sha256(to_string(crypto::sha256(sent->enc())));
  auto reply = ask<v1::DecapReply>("decap.sock", authorize_request);
  EXPECT_TRUE(!reply || reply->shared_secret().empty());
  EXPECT_EQ(decap(ticket_, sent->enc(), node.key.key_id).error().code(), v1::UNAUTHENTICATED)
      << "no ticket can be registered on the helpers' socket";
  auto fd = os::connect_unix(at("decap.sock"), Deadline::in_ms(1000));
  ASSERT_TRUE(fd);
  ASSERT_TRUE(os::write_all(fd->get(), Bytes{0xff, 0xff, 0xff, 0xff}, Deadline::in_ms(1000)));
  EXPECT_FALSE(os::receive_frame(fd->get(), 100, 0, Deadline::in_ms(2000))) << "an absurd length ends the connection";
}

TEST_F(KeyDaemons, TheKeyServiceMayLiveOnAnotherHostUnderMutualTls) {
  if (!keys::make_authority(root_, "ca") || !keys::make_certificate(root_, "ca", "service") ||
      !keys::make_certificate(root_, "ca", "workload") || !keys::make_authority(root_, "ca2") ||
      !keys::make_certificate(root_, "ca2", "impostor"))
    GTEST_SKIP() << "no openssl command to make certificates with";
  const std::string address = "127.0.0.1:" + std::to_string(20000 + random_u64() % 20000);
  const auto start_remote = [&] {
    kps_ = std::make_unique<Process>(std::vector<std::string>{
        TIE_BINARY_DIR "/bin/key_protectiond", "--tcp-address", address, "--tls-certificate", at("service.pem"),
        "--tls-key", at("service.key"), "--tls-authority", at("ca.pem"), "--tls-peer-name", "workload"});
  };
  start_remote();
  start_wsd({"--kps-address", address, "--kps-tls-certificate", at("impostor.pem"), "--kps-tls-key", at("impostor.key"),
             "--kps-tls-authority", at("ca.pem"), "--kps-tls-peer-name", "service"});
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  {
    std::lock_guard lock(control_.mutex);
    EXPECT_EQ(control_.last.bundles_size(), 0) << "an impostor gets no key made";
  }
  const std::vector<std::string> honest = {"--kps-address",         address,
                                           "--kps-tls-certificate", at("workload.pem"),
                                           "--kps-tls-key",         at("workload.key"),
                                           "--kps-tls-authority",   at("ca.pem"),
                                           "--kps-tls-peer-name",   "service"};
  wsd_.reset();
  start_wsd(honest);
  const auto node = wait_node();
  auto sent = crypto::SealedRequest::create(node.key);
  ASSERT_TRUE(sent);
  ASSERT_EQ(authorize(ticket_, sent->enc(), node.key.key_id), v1::OK);
  EXPECT_FALSE(decap(ticket_, sent->enc(), node.key.key_id).has_error());
  EXPECT_EQ(kps_->end(SIGTERM), 0);
  start_remote();
  const std::string old_id = to_string(node.key.key_id);
  const auto published = wait_published([&](const auto& request) { return request.bundles(0).key_id() != old_id; });
  EXPECT_EQ(published.revoked_key_ids_size(), 1) << "connected again, to a service with another boot id";
}

TEST_F(KeyDaemons, AnotherUserThanTheOneASocketIsForIsTurnedAway) {
  start_wsd({"--decap-peer-uid", std::to_string(::getuid() + 1), "--authorize-peer-uid", std::to_string(::getuid())});
  const auto node = wait_node();
  auto sent = crypto::SealedRequest::create(node.key);
  ASSERT_EQ(authorize(ticket_, sent->enc(), node.key.key_id), v1::OK);
  EXPECT_FALSE(ask<v1::DecapReply>("decap.sock", v1::DecapRequest()));
}

TEST_F(KeyDaemons, ANewKeyServiceMeansNewKeysWithinSeconds) {
  start_wsd();
  const auto first = wait_node();
  auto sent = crypto::SealedRequest::create(first.key);
  ASSERT_EQ(authorize(ticket_, sent->enc(), first.key.key_id), v1::OK);
  EXPECT_EQ(kps_->end(SIGKILL), 128 + SIGKILL);
  EXPECT_TRUE(decap(ticket_, sent->enc(), first.key.key_id).has_error());
  start_kps();
  const std::string old_id = to_string(first.key.key_id);
  const auto published = wait_published([&](const auto& request) { return request.bundles(0).key_id() != old_id; });
  ASSERT_EQ(published.accepted_key_ids_size(), 1);
  ASSERT_EQ(published.revoked_key_ids_size(), 1);
  EXPECT_EQ(published.revoked_key_ids(0), old_id);
  EXPECT_EQ(authorize(Bytes(32, 8), sent->enc(), first.key.key_id), v1::KEY_UNKNOWN_OR_EXPIRED);
  const auto second = verified(published.bundles(0));
  auto again = crypto::SealedRequest::create(second.key);
  ASSERT_EQ(authorize(Bytes(32, 9), again->enc(), second.key.key_id), v1::OK);
  EXPECT_FALSE(decap(Bytes(32, 9), again->enc(), second.key.key_id).has_error());
}

TEST_F(KeyDaemons, PublishAgainAfterCloudboarddRestarts) {
  start_wsd();
  const auto node = wait_node();
  cloudboardd_->stop(Deadline::in_ms(0));
  cloudboardd_.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  {
    std::lock_guard lock(control_.mutex);
    control_.count = 0;
    control_.last.Clear();
  }
  start_cloudboardd();
  EXPECT_EQ(wait_node().key.key_id, node.key.key_id) << "the same key, told again";
}

TEST_F(KeyDaemons, AKeyWhoseReplayRecordIsLostIsRevokedAndReplaced) {
  start_wsd();
  const auto node = wait_node();
  const std::string id = to_string(node.key.key_id);
  {
    std::lock_guard lock(control_.mutex);
    control_.unrestorable = {id};
  }
  cloudboardd_->stop(Deadline::in_ms(0));
  start_cloudboardd();
  const auto published = wait_published([&](const auto& request) { return request.bundles(0).key_id() != id; });
  ASSERT_EQ(published.revoked_key_ids_size(), 1);
  EXPECT_EQ(published.revoked_key_ids(0), id);
}

TEST_F(KeyDaemons, RotateWithOverlap) {
  start_wsd({"--key-lifetime-ms", "2000", "--key-grace-ms", "300000"});
  const auto first = wait_node();
  auto sent = crypto::SealedRequest::create(first.key);
  const std::string old_id = to_string(first.key.key_id);
  const auto published = wait_published([&](const auto& request) { return request.bundles(0).key_id() != old_id; });
  EXPECT_GE(published.accepted_key_ids_size(), 2);
  ASSERT_EQ(authorize(ticket_, sent->enc(), first.key.key_id), v1::OK) << "sealed before the rotation";
  EXPECT_FALSE(decap(ticket_, sent->enc(), first.key.key_id).has_error());
}

TEST_F(KeyDaemons, RotationUnderLoadLosesNoRequest) {
  start_wsd({"--key-lifetime-ms", "1600"});
  (void)wait_node();
  std::atomic<int> opened = 0, lost = 0;
  std::mutex mutex;
  std::set<std::string> keys;
  const auto client = [&](uint8_t name) {
    const Deadline end = Deadline::in_ms(3000);
    for (uint32_t round = 0; !end.passed(); ++round) {
      crypto::RequestKey key{crypto::kSuiteXWing, {}, {}};
      {
        std::lock_guard lock(control_.mutex);
        if (control_.last.bundles_size() == 0) continue;
        key.key_id = to_bytes(control_.last.bundles(0).key_id());
        key.public_key = to_bytes(control_.last.bundles(0).kem().kem_public_key());
      }
      auto sent = crypto::SealedRequest::create(key);
      std::this_thread::sleep_for(
          std::chrono::milliseconds(round % 3 * 40));  // sealed before a rotation, sent after it
      Bytes ticket(32, name);
      for (int i = 0; i < 4; ++i) ticket[static_cast<size_t>(i)] = static_cast<uint8_t>(round >> (8 * i));
      const bool good =
          authorize(ticket, sent->enc(), key.key_id) == v1::OK && !decap(ticket, sent->enc(), key.key_id).has_error();
      ++(good ? opened : lost);
      std::lock_guard lock(mutex);
      keys.insert(to_string(key.key_id));
    }
  };
  std::vector<std::thread> clients;
  for (uint8_t name = 1; name <= 4; ++name) clients.emplace_back(client, name);
  for (std::thread& one : clients) one.join();
  EXPECT_EQ(lost, 0);
  EXPECT_GT(opened, 20);
  EXPECT_GE(keys.size(), 3u);
  std::printf("opened %d requests under %zu keys\n", opened.load(), keys.size());
}

TEST_F(KeyDaemons, ADecapsulationTakesAboutAMillisecond) {
  start_wsd();
  const auto node = wait_node();
  std::vector<int64_t> took_us;
  for (uint8_t i = 0; i < 50; ++i) {
    auto sent = crypto::SealedRequest::create(node.key);
    ASSERT_EQ(authorize(Bytes(32, i), sent->enc(), node.key.key_id), v1::OK);
    const int64_t started = monotonic_us();
    ASSERT_FALSE(decap(Bytes(32, i), sent->enc(), node.key.key_id).has_error());
    took_us.push_back(monotonic_us() - started);
  }
  std::sort(took_us.begin(), took_us.end());
  std::printf("decapsulation: median %lld us, worst %lld us\n", static_cast<long long>(took_us[25]),
              static_cast<long long>(took_us[49]));
  EXPECT_LT(took_us[25], 50'000) << "far above what it costs: something waits";
}

TEST_F(KeyDaemons, FreshEvidenceForAChallengeAndFlippedProgramsAreRefusedByThePolicy) {
  start_wsd();
  const auto node = wait_node();
  v1::ClaimsRequest request;
  request.set_challenge(std::string(32, 'q'));
  auto reply = ask<v1::ClaimsReply>("claims.sock", request);
  ASSERT_TRUE(reply && !reply->has_error());
  auto fresh =
      attestation::verify_bundle(reply->bundle(), policy_, {Bytes(32, 'q'), static_cast<uint64_t>(wall_clock_ms())});
  ASSERT_TRUE(fresh) << fresh.error().message;
  EXPECT_EQ(fresh->key.key_id, node.key.key_id);
  EXPECT_EQ(wsd_->end(SIGTERM), 0);
  std::ofstream(root_ / "manifest") << std::string(63, 'a') + "b  libexec/tie/cloudboardd\n";
  start_wsd();
  const std::string old_id = to_string(node.key.key_id);
  const auto published = wait_published([&](const auto& said) { return said.bundles(0).key_id() != old_id; });
  auto refused =
      attestation::verify_bundle(published.bundles(0), policy_, {std::nullopt, static_cast<uint64_t>(wall_clock_ms())});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("runs release"), std::string::npos);
}

TEST_F(KeyDaemons, AChangedModelOrPromptRotatesTheKeyWithoutLosingTheOldOne) {
  start_wsd();
  const auto first = wait_node();
  auto sent = crypto::SealedRequest::create(first.key);
  fs::create_directories(root_ / "assets/prompts");
  std::ofstream(root_ / "assets/prompts/p.json") << "{}";
  const std::string old_id = to_string(first.key.key_id);
  const auto published = wait_published([&](const auto& said) { return said.bundles(0).key_id() != old_id; });
  EXPECT_EQ(verified(published.bundles(0)).prompt_digests, std::vector<crypto::Digest>{crypto::sha256(as_bytes("{}"))});
  ASSERT_EQ(authorize(ticket_, sent->enc(), first.key.key_id), v1::OK);
  EXPECT_FALSE(decap(ticket_, sent->enc(), first.key.key_id).has_error());
}

TEST_F(KeyDaemons, EndCleanlyAndAreNotDumpable) {
  start_wsd();
  (void)wait_node();
  for (const Process* process : {wsd_.get(), kps_.get()}) {
    const std::string environment = "/proc/" + std::to_string(process->pid()) + "/environ";
    struct stat st{};
    ASSERT_EQ(::stat(environment.c_str(), &st), 0);
    EXPECT_EQ(st.st_uid, 0u) << "a process that is not dumpable belongs to root in /proc";
  }
  EXPECT_EQ(wsd_->end(SIGTERM), 0);
  EXPECT_EQ(kps_->end(SIGTERM), 0);
}

TEST_F(KeyDaemons, RefuseToStartWithoutAManifestOrModels) {
  fs::remove(root_ / "manifest");
  start_wsd();
  EXPECT_EQ(wsd_->end(0), 1);
  std::ofstream(root_ / "manifest") << std::string(64, 'a') + "  x\n";
  fs::remove_all(root_ / "assets/models/m");
  start_wsd();
  EXPECT_EQ(wsd_->end(0), 1);
}

}  // namespace
}  // namespace tie::wsd
