#include "keys/token_spentd/spend_desk.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/random.h"
#include "keys/token_spentd/limits.h"
#include "keys/tokens/testing.h"
#include "os/framed_message.h"

namespace tie::spentd {
namespace {

namespace fs = std::filesystem;

class Spending : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { issuer_ = new tokens::testing::Issuer; }
  static void TearDownTestSuite() { delete issuer_; }
  Spending() { fs::create_directories(folder_ + "/tokens"); }
  ~Spending() override { fs::remove_all(folder_); }

  tokens::TokenGate gate() const { return {issuer_->file(0, 1000), Bytes(tokens::kContextBytes, 7)}; }
  std::unique_ptr<SpendDesk> desk(size_t max = 100, size_t expect_lost = 0) const {
    auto guard = keys::ReplayGuard::open(state_, max);
    EXPECT_TRUE(guard) << guard.error().message;
    auto out = std::make_unique<SpendDesk>(gate(), std::move(*guard));
    EXPECT_EQ(out->restore(1), expect_lost);
    return out;
  }
  static v1::SpendRequest request(ByteView token) {
    v1::SpendRequest out;
    out.set_token(to_string(token));
    return out;
  }
  v1::SpendRequest fresh() const { return request(issuer_->token(gate().challenge())); }
  std::string record() const {
    for (const auto& entry : fs::directory_iterator(state_))
      if (entry.path().filename().string().starts_with("replay-")) return entry.path();
    return "";
  }

  static inline const tokens::testing::Issuer* issuer_ = nullptr;
  const std::string folder_ = "/dev/shm/tie-spend-" + random_hex(8);
  const std::string state_ = folder_ + "/state";
};

TEST_F(Spending, ATokenIsAcceptedOnceEvenAfterARestart) {
  const auto token = fresh();
  {
    auto first = desk();
    EXPECT_TRUE(first->spend(token, 1).accepted());
    EXPECT_FALSE(first->spend(token, 1).accepted());
    EXPECT_TRUE(first->spend(fresh(), 1).accepted()) << "another token of the same issuer";
  }
  EXPECT_FALSE(desk()->spend(token, 1).accepted());
}

TEST_F(Spending, TwoSignaturesOverOneInputAreOneToken) {
  const Bytes challenge = gate().challenge(), nonce(32, 9);
  const auto issue = [&](uint8_t salt) {
    Bytes blind(tokens::kModulusBytes, 0);
    blind.back() = 3;
    auto pending =
        tokens::PendingToken::begin_with(issuer_->key.public_key(), challenge, nonce, Bytes(48, salt), blind);
    return *pending->finish(issuer_->key.public_key(),
                            *issuer_->key.sign(tokens::decode_request(pending->request())->blinded_message));
  };
  const Bytes one = issue(1), two = issue(2);
  ASSERT_NE(one, two);
  auto spending = desk();
  EXPECT_TRUE(spending->spend(request(one), 1).accepted());
  EXPECT_FALSE(spending->spend(request(two), 1).accepted());
}

TEST_F(Spending, ForgedForeignAndExpiredTokensAreRefusedAndNotRemembered) {
  auto spending = desk();
  const auto size = fs::file_size(record());
  Bytes forged = issuer_->token(gate().challenge());
  forged.back() ^= 1;
  const tokens::testing::Issuer other;
  EXPECT_FALSE(spending->spend(request(forged), 1).accepted());
  EXPECT_FALSE(spending->spend(request(other.token(gate().challenge())), 1).accepted());
  EXPECT_FALSE(spending->spend({}, 1).accepted());
  EXPECT_FALSE(spending->spend(fresh(), 1000).accepted()) << "expired";
  EXPECT_EQ(fs::file_size(record()), size);
}

TEST_F(Spending, TheRecordLivesUntilTheKeysWindowClosesAndTheClockCannotReviveIt) {
  auto spending = desk();
  const auto token = fresh();
  EXPECT_TRUE(spending->spend(token, 1).accepted());
  spending->reap(999);
  EXPECT_NE(record(), "");
  EXPECT_FALSE(spending->spend(token, 999).accepted());
  spending->reap(1000);
  EXPECT_EQ(record(), "");
  EXPECT_FALSE(spending->spend(token, 1).accepted()) << "the clock was set back";
}

TEST_F(Spending, ACorruptRecordRefusesItsKeysTokensForGood) {
  desk()->spend(fresh(), 1);
  {
    std::fstream file(record(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-20, std::ios::end);
    file.put('\x55');
  }
  EXPECT_FALSE(desk(100, 1)->spend(fresh(), 1).accepted());
}

TEST_F(Spending, AFullRecordRefusesInsteadOfForgetting) {
  auto spending = desk(2);
  const auto first = fresh();
  EXPECT_TRUE(spending->spend(first, 1).accepted());
  EXPECT_TRUE(spending->spend(fresh(), 1).accepted());
  EXPECT_FALSE(spending->spend(fresh(), 1).accepted());
  EXPECT_FALSE(spending->spend(first, 1).accepted());
}

// The daemon itself, killed while it serves.
class Daemon : public Spending {
 protected:
  Daemon() {
    const int64_t now = wall_clock_ms() / 1000;
    file_ = issuer_->file(now - 10, now + 1000);
    tie_check(os::write_file_atomic(folder_ + "/tokens/issuer", as_bytes(tokens::render(file_))).has_value() &&
                  os::write_file_atomic(folder_ + "/tokens/context", Bytes(tokens::kContextBytes, 7)).has_value(),
              "the test's folder can be written");
    start();
  }
  ~Daemon() override { kill_it(); }
  void start() {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::execl(TIE_BINARY_DIR "/bin/token_spentd", "token_spentd", "--socket", socket_.c_str(), "--tokens",
              (folder_ + "/tokens").c_str(), "--state-dir", state_.c_str(), nullptr);
      ::_exit(127);
    }
  }
  void kill_it() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  Result<bool> ask(const v1::SpendRequest& spend) const {
    const Deadline deadline = Deadline::in_ms(10'000);
    Result<os::Fd> socket = fail(Code::kIo, "");
    while (!(socket = os::connect_unix(socket_, deadline)) && !deadline.passed()) ::usleep(10'000);
    TIE_TRY(os::Fd connected, std::move(socket));
    TIE_CHECK_OK(os::send_message(connected.get(), spend, deadline));
    TIE_TRY(auto reply, os::receive_message<v1::SpendReply>(connected.get(), 64, deadline));
    return reply.message.accepted();
  }
  tokens::IssuerFile file_;
  const std::string socket_ = folder_ + "/s.sock";
  pid_t pid_ = -1;
};

TEST_F(Daemon, ASpentTokenStaysSpentAfterAKill9) {
  const auto token = fresh();
  auto accepted = ask(token);
  ASSERT_TRUE(accepted) << accepted.error().message;
  EXPECT_TRUE(*accepted);
  kill_it();
  start();
  accepted = ask(token);
  ASSERT_TRUE(accepted) << accepted.error().message;
  EXPECT_FALSE(*accepted);
  EXPECT_TRUE(*ask(fresh()));
}

TEST_F(Daemon, GarbageEndsTheConnectionAndNothingElse) {
  EXPECT_FALSE(*ask({}));
  const Deadline deadline = Deadline::in_ms(5'000);
  auto socket = os::connect_unix(socket_, deadline);
  ASSERT_TRUE(socket);
  ASSERT_TRUE(os::send_frame(socket->get(), Bytes(64, 0xff), {}, deadline));
  EXPECT_FALSE(os::receive_frame(socket->get(), 64, 0, deadline));
  EXPECT_TRUE(*ask(fresh()));
}

}  // namespace
}  // namespace tie::spentd
