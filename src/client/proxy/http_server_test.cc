// The server's own manners, whatever it serves: who gets a place, and what is said to those who do not speak HTTP.
#include "client/proxy/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "os/fd.h"

namespace tie::client {
namespace {

constexpr int kPlaces = 8;
constexpr int64_t kPatienceMs = 30'000;

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto handle = [this](const HttpRequest& request, HttpReply& reply) {
      ++served_;
      while (request.path == "/slow" && !release_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      reply.status = request.path == "/wrong" ? 400 : 200;
      reply.headers.emplace_back("x-tie-verification", "test");
      reply.body = "{\"of\":\"handler\"}";
      if (request.path != "/pieces") return;
      reply.stream = [left = 3](const std::function<bool(std::string_view)>& write) mutable {
        return write("piece;") && --left > 0;
      };
    };
    auto refuse = [](int status, const std::string& sentence, HttpReply& reply) {
      reply.headers.emplace_back("x-tie-verification", "test");
      reply.body = "{\"error\":{\"status\":" + std::to_string(status) + ",\"message\":\"" + sentence + "\"}}";
    };
    auto started = HttpServer::start({.port = 0, .max_connections = kPlaces}, handle, refuse);
    ASSERT_TRUE(started) << started.error().message;
    server_ = std::move(*started);
  }
  void TearDown() override { release_ = true; }

  os::Fd connect() {
    os::Fd out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{.sin_family = AF_INET,
                   .sin_port = htons(static_cast<uint16_t>(server_->port())),
                   .sin_addr = {htonl(INADDR_LOOPBACK)},
                   .sin_zero = {}};
    EXPECT_EQ(::connect(out.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return out;
  }
  static void say(const os::Fd& to, const std::string& text) {
    (void)!::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  // All until the server closes; nothing when it does not.
  static std::string until_closed(const os::Fd& from) {
    std::string out;
    char buffer[4096];
    for (Deadline deadline = Deadline::in_ms(kPatienceMs);;) {
      pollfd entry{from.get(), POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(deadline.remaining_ms())) <= 0) return "it stays open: " + out;
      ssize_t got = ::recv(from.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return out;
      out.append(buffer, static_cast<size_t>(got));
    }
  }
  std::string ask(const std::string& path) {
    os::Fd socket = connect();
    say(socket, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return until_closed(socket);
  }
  void wait_for(int served) {
    Deadline deadline = Deadline::in_ms(kPatienceMs);
    while (served_ < served && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_GE(served_, served);
  }

  std::atomic<bool> release_{false};
  std::atomic<int> served_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ConnectionsThatSayNothingMakeRoomTheOldestFirst) {
  std::vector<os::Fd> silent;
  for (int i = 0; i < 5 * kPlaces; ++i) silent.push_back(connect());
  say(silent.back(), "GET / HTT");  // a part of a request is none
  EXPECT_TRUE(ask("/").starts_with("HTTP/1.1 200 ")) << "room was made";
  for (int i = 0; i < 4 * kPlaces; ++i) EXPECT_EQ(until_closed(silent[size_t(i)]), "") << i;
}

TEST_F(HttpServerTest, AConnectionThatIsServedKeepsItsPlaceAndTheNextHearsWhyNot) {
  std::vector<os::Fd> slow;
  for (int i = 0; i < kPlaces; ++i) {
    slow.push_back(connect());
    say(slow.back(), "GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }
  wait_for(kPlaces);
  std::string refused = ask("/");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503 ")) << refused;
  EXPECT_NE(refused.find("\r\nContent-Type: application/json\r\n"), std::string::npos) << refused;
  EXPECT_NE(refused.find("\r\nRetry-After: 1\r\n"), std::string::npos);
  EXPECT_NE(refused.find("{\"error\":{\"status\":503,\"message\":\"Too many requests"), std::string::npos) << refused;
  release_ = true;
  for (const os::Fd& one : slow) EXPECT_TRUE(until_closed(one).starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(ask("/").starts_with("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, AnIdleKeptConnectionServesOn) {
  os::Fd kept = connect();
  for (int i = 1; i <= 3; ++i) {
    say(kept, "GET /wrong HTTP/1.1\r\nHost: x\r\n\r\n");  // a handler's 400 ends nothing
    wait_for(i);
  }
  say(kept, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  std::string all = until_closed(kept);
  EXPECT_TRUE(all.ends_with("{\"of\":\"handler\"}")) << all;
}

TEST_F(HttpServerTest, APostThatAnnouncesNoBodyHasNoneAndIsAnsweredAtOnce) {
  for (const char* method : {"POST", "PUT", "PATCH", "DELETE"}) {
    os::Fd kept = connect();
    int before = served_;
    say(kept, std::string(method) + " / HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for(before + 1);
    say(kept, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    std::string all = until_closed(kept);
    EXPECT_TRUE(all.starts_with("HTTP/1.1 200 ") && all.ends_with("{\"of\":\"handler\"}")) << method << "->\n" << all;
  }
}

TEST_F(HttpServerTest, AnOldClientGetsItsPiecesAsTheyAreAndTheConnectionEnds) {
  for (const char* wish : {"", "Connection: keep-alive\r\n", "Connection: Keep-Alive\r\n"}) {
    os::Fd socket = connect();
    say(socket, std::string("GET /pieces HTTP/1.0\r\nHost: x\r\n") + wish + "\r\n");
    std::string said = until_closed(socket);
    EXPECT_TRUE(said.starts_with("HTTP/1.1 200 ") && said.ends_with("\r\n\r\npiece;piece;piece;")) << said;
    EXPECT_EQ(said.find("chunked"), std::string::npos) << said;
    EXPECT_NE(said.find("\r\nConnection: close\r\n"), std::string::npos) << said;
  }
  os::Fd socket = connect();
  say(socket, "GET /pieces HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(until_closed(socket).ends_with("\r\n\r\n6\r\npiece;\r\n6\r\npiece;\r\n6\r\npiece;\r\n0\r\n\r\n"));
}

TEST_F(HttpServerTest, ABodyIsNeverTakenForTheNextRequest) {
  const std::string next = "GET /wrong HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string length = "Content-Length: " + std::to_string(next.size()) + "\r\n\r\n" + next;
  const std::string chunked = "Transfer-Encoding: chunked\r\n\r\n24\r\n" + next + "\r\n0\r\n\r\n";
  for (const char* method : {"GET", "HEAD", "OPTIONS", "DELETE"}) {
    for (const std::string& body : {length, chunked}) {
      os::Fd socket = connect();
      say(socket, std::string(method) + " / HTTP/1.1\r\nHost: x\r\n" + body);
      std::string said = until_closed(socket);
      EXPECT_TRUE(said.starts_with("HTTP/1.1 400 ")) << method << "->\n" << said;
      EXPECT_EQ(said.find("HTTP/1.1", 1), std::string::npos) << method << "->\n" << said;
    }
  }
  EXPECT_EQ(served_, 0);
  os::Fd socket = connect();
  say(socket, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(until_closed(socket).starts_with("HTTP/1.1 200 "));
  for (const char* name : {"chunked", "Chunked"}) {
    os::Fd posted = connect();
    say(posted, std::string("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: ") + name +
                    "\r\n\r\n2\r\n{}\r\n0\r\n\r\n");
    EXPECT_TRUE(until_closed(posted).starts_with("HTTP/1.1 200 ")) << name;
  }
}

TEST_F(HttpServerTest, WhatIsNotHttpIsAnsweredOnceAndTheConnectionCloses) {
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
  const std::vector<std::string> wrong = {
      post + "Content-Length: -5\r\n\r\n",
      post + "Content-Length: -1\r\n\r\n{}",
      post + "Content-Length: +5\r\n\r\nhello",
      post + "Content-Length: 5x\r\n\r\nhello",
      post + "Content-Length: 0x5\r\n\r\nhello",
      post + "Content-Length: 99999999999999999999999\r\n\r\n",
      post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
      post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      post + "Transfer-Encoding: gzip\r\n\r\nhello",
      post + "Transfer-Encoding: chunked\r\n\r\nzzzz\r\n\r\n",
      "GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
      "GARBAGE\r\n\r\n",
      "GET / HTTP/9.9\r\n\r\n",
  };
  for (const std::string& bytes : wrong) {
    os::Fd socket = connect();
    say(socket, bytes);
    std::string said = until_closed(socket);
    EXPECT_TRUE(said.starts_with("HTTP/1.1 400 ")) << bytes << "->\n" << said;
    EXPECT_NE(said.find("{\"error\":{\"status\":400,"), std::string::npos) << bytes << "->\n" << said;
    EXPECT_NE(said.find("\r\nConnection: close\r\n"), std::string::npos) << bytes << "->\n" << said;
    EXPECT_EQ(said.find("Keep-Alive"), std::string::npos) << bytes << "->\n" << said;
  }
  EXPECT_EQ(served_, 0);
}

}  // namespace
}  // namespace tie::client
