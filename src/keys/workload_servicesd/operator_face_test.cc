#include "keys/workload_servicesd/operator_face.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "keys/workload_servicesd/key_keeper.h"
#include "keys/workload_servicesd/testing/fake_key_service.h"
#include "os/unix_socket.h"

namespace tie::wsd {
namespace {

using nlohmann::json;

TEST(HttpMessage, AWholeRequestInPieces) {
  const std::string request = "POST /destroy HTTP/1.1\r\nHost: x\r\ncontent-LENGTH: 4\r\n\r\n{  }";
  for (size_t size = 0; size < request.size(); ++size) {
    auto parsed = parse_http(request.substr(0, size));
    ASSERT_TRUE(parsed && !*parsed) << size;
  }
  auto parsed = parse_http(request);
  ASSERT_TRUE(parsed && *parsed);
  EXPECT_EQ((*parsed)->method, "POST");
  EXPECT_EQ((*parsed)->path, "/destroy");
  EXPECT_EQ((*parsed)->body, "{  }");
}

TEST(HttpMessage, RefusesWhatItDoesNotUnderstand) {
  for (const std::string& bad :
       {std::string("GET /\r\n\r\n"), std::string("GET / HTTP/2\r\n\r\n"), std::string("GET keys HTTP/1.1\r\n\r\n"),
        std::string("GET /a b HTTP/1.1\r\n\r\n"), std::string("GET /\x01 HTTP/1.1\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
        std::string("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nContent-Length: 4097\r\n\r\n"), std::string("GET / HTTP/1.1\r\n a: b\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nnothing\r\n\r\n"), std::string("GET / HTTP/1.1\r\n\r\nmore"),
        std::string(kMaxHttpHeadBytes + 1, 'a')})
    EXPECT_FALSE(parse_http(bad)) << bad.substr(0, 60);
}

class Face : public ::testing::Test {
 protected:
  Face() { tie_check(keeper_.step(monotonic_ms(), wall_clock_ms()).has_value(), "the first key is made"); }
  HttpReply ask(const std::string& method, const std::string& path, const std::string& body = "", bool may_act = true) {
    return face_.answer({method, path, body}, may_act);
  }
  json keys() { return json::parse(ask("GET", "/keys").json).at("keys"); }
  FakeKeyService service_;
  attestation::SoftwareSigner signer_;
  KeyRing ring_;
  KeyKeeper keeper_{service_, ring_, signer_, some_facts(), {crypto::KemId::kX25519HkdfSha256}};
  OperatorFace face_{
      {{crypto::KemId::kX25519HkdfSha256}, "software", true, 1000, 10, 2000},
      ring_,
      {[this](crypto::KemId kem) { keeper_.rotate(kem); }, [this](const crypto::Digest& id) { keeper_.revoke(id); }}};
};

TEST_F(Face, TellsWhatItCanAndWhichKeysLive) {
  const json can = json::parse(ask("GET", "/capabilities").json);
  EXPECT_EQ(can.at("suites"), json({"x25519"}));
  EXPECT_EQ(can.at("evidence_kind"), "software");
  const json all = keys();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].at("published"), true);
  EXPECT_EQ(all[0].at("key_id").get<std::string>().size(), 64u);
}

TEST_F(Face, AFreshKeyOnDemandAndTheOldOneStaysAccepted) {
  const std::string old_id = keys()[0].at("key_id");
  std::thread stepping([this] {
    for (int i = 0; i < 200 && service_.generated < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      (void)keeper_.step(monotonic_ms(), wall_clock_ms());
    }
  });
  const HttpReply reply = ask("POST", "/generate_key", R"({"suite":"x25519"})");
  stepping.join();
  ASSERT_EQ(reply.status, 200) << reply.json;
  EXPECT_NE(json::parse(reply.json).at("key_id"), old_id);
  const json all = keys();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].at("published").get<bool>() + all[1].at("published").get<bool>(), 1);
}

TEST_F(Face, ADestroyedKeyIsGoneAtOnce) {
  const std::string id = keys()[0].at("key_id");
  EXPECT_EQ(ask("POST", "/destroy", json{{"key_id", id}}.dump()).status, 200);
  EXPECT_EQ(keys().size(), 0u);
  EXPECT_EQ(ask("POST", "/destroy", json{{"key_id", id}}.dump()).status, 404);
  EXPECT_TRUE(keeper_.step(monotonic_ms(), wall_clock_ms()));
  EXPECT_EQ(keys().size(), 1u) << "another is made";
}

TEST_F(Face, EachRefusalHasItsStatus) {
  EXPECT_EQ(ask("GET", "/").status, 404);
  EXPECT_EQ(ask("GET", "/keys/1").status, 404);
  EXPECT_EQ(ask("POST", "/keys").status, 400);
  EXPECT_EQ(ask("GET", "/destroy").status, 400);
  EXPECT_EQ(ask("POST", "/authorize").status, 403);
  EXPECT_EQ(ask("POST", "/decap").status, 403);
  EXPECT_EQ(ask("POST", "/destroy", "", false).status, 401);
  EXPECT_EQ(ask("GET", "/keys", "", false).status, 200);
  for (const char* bad : {"", "[]", "{}", R"({"suite":1})", R"({"suite":"xwing"})", "{\"suite\":\"\xff\"}"})
    EXPECT_EQ(ask("POST", "/generate_key", bad).status, 400) << bad;
  for (const char* bad : {"", R"({"key_id":"00"})", R"({"key_id":7})", "[[[[[[["}) {
    const HttpReply reply = ask("POST", "/destroy", bad);
    EXPECT_EQ(reply.status, 400) << bad;
    EXPECT_TRUE(json::parse(reply.json).at("error").is_string());
  }
}

TEST_F(Face, AFullRingIsAConflictAndASilentKeyServiceAnError) {
  service_.reachable = false;
  EXPECT_EQ(ask("POST", "/generate_key", R"({"suite":"x25519"})").status, 500);
  service_.reachable = true;
  while (ring_.size() < kMaxKeys) {
    keeper_.rotate(crypto::KemId::kX25519HkdfSha256);
    ASSERT_TRUE(keeper_.step(monotonic_ms() + 200'000, wall_clock_ms()));
  }
  EXPECT_EQ(ask("POST", "/generate_key", R"({"suite":"x25519"})").status, 409);
}

TEST_F(Face, OverASocketGarbageGetsA400AndSilenceAnEnd) {
  auto talk = [&](const std::string& bytes, bool close) {
    auto pair = *os::socket_pair();
    std::thread serving([&] { EXPECT_FALSE(serve_operator(face_, std::nullopt, pair.second.get())); });
    EXPECT_TRUE(os::write_all(pair.first.get(), as_bytes(bytes), Deadline::in_ms(1000)));
    if (close) pair.first.close();
    serving.join();
    pair.second.close();
    Bytes reply(15);
    return close || !os::read_exact(pair.first.get(), reply, Deadline::in_ms(1000)) ? "" : to_string(reply);
  };
  EXPECT_EQ(talk("GET /keys HTTP/1.1\r\n\r\n", false), "HTTP/1.1 200 OK");
  EXPECT_EQ(talk("\r\n\r\n", false), "HTTP/1.1 400 Ba");
  EXPECT_EQ(talk("GET /keys HT", true), "");
}

}  // namespace
}  // namespace tie::wsd
