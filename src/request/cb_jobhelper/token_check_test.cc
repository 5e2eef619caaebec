#include "request/cb_jobhelper/token_check.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"
#include "crypto/library_start.h"
#include "keys/tokens/testing.h"
#include "os/framed_message.h"
#include "request/cb_jobhelper/helper.h"
#include "request/cb_jobhelper/testing.h"
#include "tokens.pb.h"

namespace tie::request::jobhelper {
namespace {

// As the program does first: tokens must be judged without what this leaves out.
[[maybe_unused]] const bool kStarted = (crypto::start_library_for_one_request(), true);

using Issuer = tokens::testing::Issuer;

struct TokenCheck : ::testing::Test {
  static void SetUpTestSuite() { issuer = new Issuer; }
  static void TearDownTestSuite() { delete issuer; }
  static inline const Issuer* issuer = nullptr;

  const int64_t now = wall_clock_ms() / 1000;
  tokens::TokenGate gate{issuer->file(now - 10, now + 1000), Bytes(tokens::kContextBytes, 7)};
  std::pair<os::Fd, os::Fd> spend = *os::socket_pair();
  size_t asked = 0;

  // The verdict on `token` while a pretended token_spentd answers `answer`.
  bool verdict(const Bytes& token, bool answer, bool reachable = true) {
    std::thread spentd([this, answer, reachable] {
      if (!reachable) return spend.second.close();
      auto request = os::receive_message<v1::SpendRequest>(spend.second.get(), 1024, Deadline::in_ms(300));
      if (!request) return;
      ++asked;
      v1::SpendReply reply;
      reply.set_accepted(answer);
      (void)os::send_message(spend.second.get(), reply, Deadline::in_ms(1000));
    });
    const bool out = token_check(gate_again(), spend.first.get())(token);
    spentd.join();
    return out;
  }
  tokens::TokenGate gate_again() const { return {issuer->file(now - 10, now + 1000), Bytes(tokens::kContextBytes, 7)}; }
};

TEST_F(TokenCheck, AGoodTokenThatWasNotSpentOpensTheNode) {
  EXPECT_TRUE(verdict(issuer->token(gate.challenge()), true));
  EXPECT_EQ(asked, 1u);
}

TEST_F(TokenCheck, ASpentTokenDoesNot) {
  EXPECT_FALSE(verdict(issuer->token(gate.challenge()), false));
}

TEST_F(TokenCheck, AForgedTokenDoesNotEvenIfTheDaemonWouldTakeItAndIsNotShownToIt) {
  Bytes forged = issuer->token(gate.challenge());
  forged.back() ^= 1;
  EXPECT_FALSE(verdict(forged, true));
  EXPECT_EQ(asked, 0u);
}

TEST_F(TokenCheck, WithoutTheDaemonNothingIsAccepted) {
  EXPECT_FALSE(verdict(issuer->token(gate.challenge()), true, false));
}

// The helper's loop with a verifier: a warm helper whose token_spentd went away ends, so that the pool starts another.
TEST_F(TokenCheck, AWarmHelperWithoutItsDaemonEnds) {
  auto cloudboard = *os::socket_pair(), app = *os::socket_pair(), keys = *os::socket_pair();
  Connections connections{std::move(cloudboard.second), std::move(app.second), std::move(keys.second),
                          std::move(spend.first)};
  const int socket = connections.spend.get();
  std::thread helper([&, held = std::move(connections)]() mutable {
    (void)serve(std::move(held), token_check(gate_again(), socket));
  });
  spend.second.close();
  helper.join();
}

// cloudboardd cannot switch tokens off: a node that can judge them asks for them.
TEST_F(TokenCheck, ARequestWithoutATokenIsRefusedWhateverCloudboarddSays) {
  auto cloudboard = *os::socket_pair(), app = *os::socket_pair(), keys = *os::socket_pair();
  Connections connections{std::move(cloudboard.second), std::move(app.second), std::move(keys.second),
                          std::move(spend.first)};
  const int socket = connections.spend.get();
  std::thread helper([&, held = std::move(connections)]() mutable {
    (void)serve(std::move(held), token_check(gate_again(), socket));
  });
  testing::Client client;
  const Deadline deadline = Deadline::in_ms(5'000);
  EXPECT_TRUE(os::send_message(cloudboard.first.get(), client.start(false), deadline));
  EXPECT_TRUE(os::send_message(cloudboard.first.get(), client.chunk("no token in here", true), deadline));
  EXPECT_TRUE(os::receive_message<v1::DecapRequest>(keys.first.get(), 4096, deadline));
  EXPECT_TRUE(os::send_message(keys.first.get(), client.keys_reply(), deadline));
  auto refusal = os::receive_message<v1::FromHelper>(cloudboard.first.get(), 4096, deadline);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->message.failed().code(), v1::UNAUTHENTICATED);
  helper.join();
}

}  // namespace
}  // namespace tie::request::jobhelper
