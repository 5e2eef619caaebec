// The whole daemon in this process, over real TCP and real gRPC.
#include "request/cloudboardd/server.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "cloudboard.grpc.pb.h"
#include "cloudboard_control.grpc.pb.h"
#include "health.grpc.pb.h"
#include "request/cloudboardd/testing.h"

namespace tie::request::cloudboard {
namespace {

using namespace testing;

struct ServerTest : ::testing::Test {
  TempDir dir;
  FakeDaemon helpers{dir.path + "/helper.sock", [](os::Fd connection, int) { echo_helper(std::move(connection)); }};
  FakeDaemon authorize{dir.path + "/authorize.sock",
                       [](os::Fd connection, int) { authorize_all(std::move(connection)); }};
  FakeDaemon claims{dir.path + "/claims.sock", [](os::Fd connection, int) {
                      auto got = os::receive_message<v1::ClaimsRequest>(connection.get(), 1 << 20, kLong);
                      v1::ClaimsReply reply;
                      if (got) reply.mutable_bundle()->mutable_workload()->set_challenge(got->message.challenge());
                      (void)os::send_message(connection.get(), reply, kLong);
                    }};
  std::unique_ptr<Server> server;
  std::unique_ptr<v1::CloudBoard::Stub> client;
  std::unique_ptr<v1::CloudBoardControl::Stub> control;
  std::unique_ptr<grpc::ClientContext> registration_context = std::make_unique<grpc::ClientContext>();
  std::unique_ptr<grpc::ClientReader<v1::RegistrationEvent>> registration;
  std::string session;

  void SetUp() override { start(1000); }
  void start(size_t max_connections) {
    server.reset();
    ServerConfig config{.node = {.helper_socket = dir.path + "/helper.sock",
                                 .authorize_socket = dir.path + "/authorize.sock",
                                 .claims_socket = dir.path + "/claims.sock",
                                 .state_dir = dir.path + "/state",
                                 .prewarmed = 1,
                                 .max_requests = 8},
                        .listen = "127.0.0.1:0",
                        .control_socket = dir.path + "/control.sock",
                        .max_connections = max_connections};
    auto started = Server::start(config);
    ASSERT_TRUE(started.has_value()) << started.error().message;
    server = std::move(*started);
    client = v1::CloudBoard::NewStub(channel());
    control = v1::CloudBoardControl::NewStub(
        grpc::CreateChannel("unix:" + config.control_socket, grpc::InsecureChannelCredentials()));
  }
  std::shared_ptr<grpc::Channel> channel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt("grpc.use_local_subchannel_pool", 1);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials(),
                                     arguments);
  }
  void TearDown() override {
    registration_context->TryCancel();
    registration.reset();
    server->stop(0);
  }
  void make_ready(uint32_t limit = 8) {
    v1::RegistrationEvent event;
    registration = control->Register(registration_context.get(), v1::RegisterRequest());
    ASSERT_TRUE(registration->Read(&event));
    session = event.session_id();
    grpc::ClientContext publish_context, health_context;
    v1::PublishKeysReply publish_reply;
    ASSERT_TRUE(control->PublishKeys(&publish_context, one_key(), &publish_reply).ok());
    v1::UpdateHealthStatusRequest health;
    health.set_session_id(session);
    health.set_state(v1::READY);
    health.set_max_requests(limit);
    v1::UpdateHealthStatusReply reply;
    ASSERT_TRUE(control->UpdateHealthStatus(&health_context, health, &reply).ok());
  }
  struct Outcome {
    grpc::Status status;
    std::string name;
    std::vector<std::string> chunks;
  };
  using Stream = grpc::ClientReaderWriter<v1::InvokeRequest, v1::InvokeResponse>;
  static void say_opening(Stream& stream, const std::string& enc) {
    v1::InvokeRequest setup, parameters;
    setup.mutable_setup()->set_protocol_version(1);
    stream.Write(setup);
    parameters.mutable_parameters()->set_clear_parameters(clear_parameters(enc));
    stream.Write(parameters);
  }
  Outcome invoke(const std::string& enc, std::vector<std::string> chunks = {"a", "b"}) {
    grpc::ClientContext context;
    auto stream = client->InvokeWorkload(&context);
    say_opening(*stream, enc);
    for (size_t i = 0; i < chunks.size(); ++i) {
      v1::InvokeRequest chunk;
      chunk.mutable_chunk()->set_sealed(chunks[i]);
      chunk.mutable_chunk()->set_final(i + 1 == chunks.size());
      stream->Write(chunk);
    }
    stream->WritesDone();
    Outcome out;
    v1::InvokeResponse response;
    while (stream->Read(&response))
      if (response.has_chunk()) out.chunks.push_back(response.chunk().sealed());
    out.status = stream->Finish();
    auto name = context.GetServerTrailingMetadata().find("tie-error");
    if (name != context.GetServerTrailingMetadata().end())
      out.name = std::string(name->second.data(), name->second.size());
    return out;
  }
  // What the controller hears when it asks now; nothing when it is refused.
  std::optional<uint32_t> in_flight(const std::string& of_session) {
    grpc::ClientContext context;
    v1::GetLoadRequest request;
    request.set_session_id(of_session);
    v1::UpdateHealthStatusReply reply;
    if (!control->GetLoad(&context, request, &reply).ok()) return std::nullopt;
    return reply.in_flight();
  }
  bool serving() {
    auto health = grpc::health::v1::Health::NewStub(channel());
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse reply;
    return health->Check(&context, {}, &reply).ok() && reply.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  }
  int raw_connection() {
    int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(server->port()), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    tie_check(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
    return fd;
  }
};

TEST_F(ServerTest, ServesRequestsOnceReadyAndNamesItsRefusals) {
  Outcome early = invoke("enc-0");
  EXPECT_EQ(early.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(early.name, "NOT_READY");
  EXPECT_FALSE(serving());
  make_ready();
  EXPECT_TRUE(serving());
  Outcome first = invoke("enc-1");
  EXPECT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.chunks, (std::vector<std::string>{"a", "b"}));
  Outcome replay = invoke("enc-1");
  EXPECT_EQ(replay.status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(replay.name, "REPLAYED");
}

// Each message is handed from gRPC's thread to the loop while the next read may begin already.
TEST_F(ServerTest, NoMessageOfALongRequestIsLostBetweenTheThreads) {
  make_ready();
  std::vector<std::string> chunks;
  for (int i = 0; i < 2000; ++i) chunks.push_back("chunk " + std::to_string(i));
  Outcome out = invoke("enc-long", chunks);
  EXPECT_TRUE(out.status.ok()) << out.status.error_message();
  EXPECT_EQ(out.chunks, chunks);
}

TEST_F(ServerTest, ALostRegistrationIsNotServingAtOnce) {
  make_ready();
  registration_context->TryCancel();
  for (Deadline deadline = Deadline::in_ms(30'000); serving() && !deadline.passed();) ::usleep(2000);
  EXPECT_FALSE(serving());
  EXPECT_EQ(invoke("enc").name, "NOT_READY");
}

TEST_F(ServerTest, OverTheLimitIsRefusedAtOnce) {
  make_ready(1);
  EXPECT_EQ(in_flight(session), 0u);
  EXPECT_EQ(in_flight("another"), std::nullopt);
  grpc::ClientContext context;
  auto held = client->InvokeWorkload(&context);
  say_opening(*held, "enc-held");
  v1::InvokeResponse response;
  ASSERT_TRUE(held->Read(&response));
  Outcome second = invoke("enc-2");
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(second.name, "OVERLOADED");
  EXPECT_EQ(in_flight(session), 1u) << "true at the moment of asking";
  context.TryCancel();
  held->Finish();
  bool free_again = false;
  for (int i = 0; i < 300 && !free_again; ++i) {
    free_again = invoke("enc-" + std::to_string(100 + i)).status.ok();
    if (!free_again) ::usleep(10'000);
  }
  EXPECT_TRUE(free_again);
}

TEST_F(ServerTest, WrongOrderIsFailedPrecondition) {
  make_ready();
  grpc::ClientContext context;
  auto stream = client->InvokeWorkload(&context);
  v1::InvokeRequest chunk;
  chunk.mutable_chunk()->set_sealed("x");
  stream->Write(chunk);
  v1::InvokeResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServerTest, AMessageOverFourMebibytesIsRefusedAndTheNodeLives) {
  make_ready();
  EXPECT_EQ(invoke("enc-big", {std::string((4 << 20) + 1, 'x')}).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(invoke("enc-after").status.ok());
}

TEST_F(ServerTest, EvidenceIsFreshForAChallengeAndPublishedWithoutOne) {
  make_ready();
  grpc::ClientContext a, b, c;
  v1::AttestationBundle bundle;
  v1::FetchAttestationRequest request;
  EXPECT_TRUE(client->FetchAttestation(&a, request, &bundle).ok());
  EXPECT_EQ(bundle.key_id(), key_id());
  request.set_challenge(std::string(32, 'c'));
  EXPECT_TRUE(client->FetchAttestation(&b, request, &bundle).ok());
  EXPECT_EQ(bundle.workload().challenge(), std::string(32, 'c'));
  request.set_challenge("too short");
  EXPECT_EQ(client->FetchAttestation(&c, request, &bundle).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerTest, WatchersSeeTheStateAndItsChanges) {
  grpc::ClientContext load_context, attestation_context;
  auto load = client->WatchLoadLevel(&load_context, {});
  auto attestation = client->WatchAttestation(&attestation_context, {});
  v1::LoadLevel level;
  ASSERT_TRUE(load->Read(&level));
  EXPECT_EQ(level.max_requests(), 0u);
  make_ready(5);
  v1::AttestationSet set;
  ASSERT_TRUE(attestation->Read(&set));
  EXPECT_EQ(set.bundles_size(), 1);
  while (level.max_requests() != 5) ASSERT_TRUE(load->Read(&level));
  EXPECT_EQ(level.state(), "ready");
  load_context.TryCancel();
  attestation_context.TryCancel();
}

TEST_F(ServerTest, RubbishHugeMetadataAndSlowClientsLeaveOthersAlone) {
  make_ready();
  std::vector<int> fds;
  for (int i = 0; i < 50; ++i) {
    int fd = raw_connection();
    std::string rubbish = i % 2 == 0 ? "GET / HTTP/1.1\r\nHost: x\r\n\r\n" : std::string("\x00\xff\x13PRI * HT", 11);
    (void)!::send(fd, rubbish.data(), rubbish.size(), MSG_NOSIGNAL);
    fds.push_back(fd);
  }
  grpc::ClientContext context;
  context.AddMetadata("x-huge", std::string(1 << 20, 'm'));
  auto stream = client->InvokeWorkload(&context);
  v1::InvokeResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
  client = v1::CloudBoard::NewStub(channel());
  EXPECT_TRUE(invoke("enc-ok").status.ok());
  for (int fd : fds) ::close(fd);
}

TEST_F(ServerTest, ConnectionsOverTheLimitAreClosedAndPlacesComeBack) {
  start(20);
  make_ready();
  ASSERT_TRUE(invoke("enc-a").status.ok());
  std::vector<int> fds;
  for (int i = 0; i < 60; ++i) fds.push_back(raw_connection());
  ::usleep(100'000);
  int closed = 0;
  for (int fd : fds) {
    char byte;
    ssize_t n = ::recv(fd, &byte, 1, MSG_DONTWAIT);
    closed += n == 0 || (n < 0 && errno == ECONNRESET);
  }
  EXPECT_GE(closed, 60 - 20);
  EXPECT_TRUE(invoke("enc-b").status.ok()) << "who is connected is served on";
  for (int fd : fds) ::close(fd);
  bool ok = false;
  for (int i = 0; i < 100 && !ok; ++i) {
    client = v1::CloudBoard::NewStub(channel());
    ok = invoke("enc-c" + std::to_string(i)).status.ok();
    if (!ok) ::usleep(20'000);
  }
  EXPECT_TRUE(ok) << "closed connections make room";
}

}  // namespace
}  // namespace tie::request::cloudboard
