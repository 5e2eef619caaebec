#include "client/proxy/host_guard.h"

#include <gtest/gtest.h>

#include <map>

namespace tie::client {
namespace {

HttpRequest request(std::map<std::string, std::string> headers, std::string path = "/v1/models") {
  HttpRequest out;
  out.method = "GET";
  out.path = std::move(path);
  out.header = [headers](const std::string& name) {
    auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  };
  return out;
}

TEST(HostGuard, LetsInOnlyItsOwnNames) {
  HostGuard guard{8123, {}, {}};
  for (const char* host : {"localhost:8123", "127.0.0.1:8123", "[::1]:8123", "LOCALHOST:8123"}) {
    EXPECT_FALSE(guard.refusal(request({{"Host", host}}))) << host;
  }
  for (const char* host : {"", "evil.example", "evil.example:8123", "127.0.0.1", "localhost", "localhost:81230",
                           "localhost:8124", "localhost.evil.example:8123", "x@localhost:8123"}) {
    auto refusal = guard.refusal(request({{"Host", host}}));
    ASSERT_TRUE(refusal) << host;
    EXPECT_EQ(http_status_of(*refusal), 403);
  }
}

TEST(HostGuard, RefusesForeignOrigins) {
  HostGuard guard{8123, {}, {}};
  EXPECT_FALSE(guard.refusal(request({{"Host", "localhost:8123"}, {"Origin", "http://localhost:8123"}})));
  for (const char* origin : {"null", "http://evil.example", "https://localhost:8123", "http://localhost:3000",
                             "http://localhost", "file://"}) {
    auto refusal = guard.refusal(request({{"Host", "localhost:8123"}, {"Origin", origin}}));
    ASSERT_TRUE(refusal) << origin;
    EXPECT_EQ(http_status_of(*refusal), 403);
  }
}

TEST(HostGuard, AsksForTheKeyWhenThereIsOne) {
  HostGuard guard{8123, "sesame", {}};
  auto with = [&](const char* authorization) {
    return guard.refusal(request({{"Host", "localhost:8123"}, {"Authorization", authorization}}));
  };
  EXPECT_FALSE(with("Bearer sesame"));
  EXPECT_FALSE(with("bearer sesame"));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesame2", "Basic sesame", "sesame"}) {
    auto refusal = with(wrong);
    ASSERT_TRUE(refusal) << wrong;
    EXPECT_EQ(http_status_of(*refusal), 401);
  }
  EXPECT_FALSE(guard.refusal(request({{"Host", "localhost:8123"}}, "/healthz")));
}

}  // namespace
}  // namespace tie::client
