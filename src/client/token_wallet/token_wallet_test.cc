#include "client/token_wallet/token_wallet.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <set>

#include "base/clock.h"
#include "keys/token_issuer/issuer.h"
#include "keys/tokens/testing.h"

namespace tie::client {
namespace {

// An issuer over HTTP on a free port, with the real signing behind it.
class FakeIssuer {
 public:
  FakeIssuer() {
    server_.Get(std::string(tokens::kDirectoryPath), [this](const httplib::Request&, httplib::Response& out) {
      const int64_t now = wall_clock_ms() / 1000;
      tokens::Directory directory{request_uri, {}};
      directory.keys.push_back(half_.public_half(now - 10, now + 1000));
      out.set_content(tokens::render_directory(directory), std::string(tokens::kDirectoryType));
    });
    server_.Post("/token-request", [this](const httplib::Request& in, httplib::Response& out) {
      ++requests;
      authorization = in.get_header_value("Authorization");
      out.status = status;
      const Bytes answer = *half_.key.sign(tokens::decode_request(as_bytes(in.body))->blinded_message);
      if (status == 200)
        out.set_content(corrupt ? std::string(256, 'x') : to_string(answer), std::string(tokens::kResponseType));
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~FakeIssuer() {
    server_.stop();
    thread_.join();
  }
  std::string name() const { return "127.0.0.1:" + std::to_string(port_); }
  tokens::TokenGate gate(uint8_t context) const {
    const int64_t now = wall_clock_ms() / 1000;
    return {half_.file(now - 10, now + 1000, name()), Bytes(tokens::kContextBytes, context)};
  }

  std::atomic<int> requests = 0, status = 200;
  std::atomic<bool> corrupt = false;
  std::string authorization, request_uri = "/token-request";

 private:
  const tokens::testing::Issuer half_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

class Wallet : public ::testing::Test {
 protected:
  std::shared_ptr<TokenWallet> open(size_t batch, const std::string& key = "key") {
    auto wallet = TokenWallet::open({.issuer_url = "http://" + issuer_.name(), .api_key = key, .batch = batch});
    EXPECT_TRUE(wallet) << wallet.error().message;
    return *wallet;
  }
  static void wait_until_held(const TokenWallet& wallet, size_t count) {
    const Deadline deadline = Deadline::in_ms(20'000);
    while (wallet.held() < count && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_EQ(wallet.held(), count);
  }
  FakeIssuer issuer_;
  const tokens::TokenGate gate_ = issuer_.gate(7);
};

TEST_F(Wallet, GivesTokensThatOpenTheNodeEachOnce) {
  auto wallet = open(0);
  std::set<Bytes> seen;
  for (int i = 0; i < 3; ++i) {
    auto token = wallet->take(gate_.challenge());
    ASSERT_TRUE(token) << token.error().message;
    EXPECT_TRUE(gate_.judge(*token, wall_clock_ms() / 1000));
    EXPECT_TRUE(seen.insert(*token).second);
  }
  EXPECT_EQ(issuer_.requests, 3) << "without a batch none is fetched ahead";
  EXPECT_EQ(issuer_.authorization, "Bearer key");
}

TEST_F(Wallet, FetchesABatchAheadSoThatRequestsDoNotWaitForTheIssuer) {
  auto wallet = open(4);
  ASSERT_TRUE(wallet->take(gate_.challenge()));
  wait_until_held(*wallet, 4);
  EXPECT_EQ(issuer_.requests, 5);
  issuer_.status = 500;  // from here the issuer gives nothing
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(wallet->take(gate_.challenge())) << i;
  EXPECT_FALSE(wallet->take(gate_.challenge()));
}

TEST_F(Wallet, TokensOfAnEarlierStartOfTheNodeAreDropped) {
  auto wallet = open(2);
  ASSERT_TRUE(wallet->take(gate_.challenge()));
  wait_until_held(*wallet, 2);
  const tokens::TokenGate restarted = issuer_.gate(8);
  auto token = wallet->take(restarted.challenge());
  ASSERT_TRUE(token);
  EXPECT_TRUE(restarted.judge(*token, wall_clock_ms() / 1000));
}

TEST_F(Wallet, SaysWhatIsWrong) {
  auto wallet = open(0);
  const auto refusal = [&] {
    auto token = wallet->take(gate_.challenge());
    return token ? Code::kOk : token.error().code;
  };
  issuer_.status = 401;
  EXPECT_EQ(refusal(), Code::kUnauthenticated);
  EXPECT_NE(open(0, "")->take(gate_.challenge()).error().message.find("--token-key-file"), std::string::npos);
  issuer_.status = 429;
  EXPECT_EQ(refusal(), Code::kOverloaded);
  issuer_.status = 302;
  EXPECT_EQ(refusal(), Code::kInternal);
  issuer_.status = 200;
  issuer_.corrupt = true;
  EXPECT_EQ(refusal(), Code::kCorrupt) << "a signature that is none";
  issuer_.corrupt = false;
  issuer_.request_uri = "https://elsewhere.example/token-request";
  wallet = open(0);
  EXPECT_EQ(refusal(), Code::kPermissionDenied) << "the API key goes to no other server";
  const tokens::TokenGate other(tokens::testing::Issuer().file(0, 1000, "other.example"), Bytes(32, 7));
  EXPECT_EQ(wallet->take(other.challenge()).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(wallet->take(as_bytes("no challenge")).error().code, Code::kCorrupt);
}

TEST(IssuerAddress, IsHttpsUnlessItIsThisMachine) {
  for (const char* good :
       {"https://issuer.example", "https://issuer.example:8124/", "http://127.0.0.1:1", "http://localhost:1"})
    EXPECT_TRUE(TokenWallet::open({.issuer_url = good})) << good;
  for (const char* bad : {"", "issuer.example", "http://issuer.example", "http://127.0.0.1@evil.example", "https://a/b",
                          "ftp://a", "https://"})
    EXPECT_FALSE(TokenWallet::open({.issuer_url = bad})) << bad;
}

}  // namespace
}  // namespace tie::client
