#include "keys/tls_link/tls_link.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>
#include <future>
#include <thread>

#include "base/random.h"
#include "keys/tls_link/testing/certificates.h"
#include "os/unix_socket.h"

namespace tie::keys {
namespace {

namespace fs = std::filesystem;

class TlsLink : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tietls" + random_hex(4));
    fs::create_directories(folder_);
    if (!make_authority(folder_, "ca") || !make_authority(folder_, "otherca"))
      GTEST_SKIP() << "no openssl command to make certificates with";
    ASSERT_TRUE(make_certificate(folder_, "ca", "service") && make_certificate(folder_, "ca", "workload") &&
                make_certificate(folder_, "otherca", "stranger"));
    auto listener = listen_tcp("127.0.0.1:0");
    ASSERT_TRUE(listener) << listener.error().message;
    listener_ = std::move(*listener);
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ASSERT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Ends {
    Result<os::Fd> server, client;
  };
  Ends link(const TlsIdentity& server, const TlsIdentity& client) {
    auto serving = std::async(std::launch::async, [&]() -> Result<os::Fd> {
      TIE_TRY(const TlsContext context, TlsContext::server(server));
      TIE_TRY(os::Fd tcp, os::accept_unix(listener_.get(), Deadline::in_ms(2000)));
      return start_tls(context, std::move(tcp), Deadline::in_ms(2000));
    });
    auto connecting = [&]() -> Result<os::Fd> {
      TIE_TRY(const TlsContext context, TlsContext::client(client));
      TIE_TRY(os::Fd tcp, connect_tcp(address_, Deadline::in_ms(2000)));
      return start_tls(context, std::move(tcp), Deadline::in_ms(2000));
    };
    auto connected = connecting();
    return {serving.get(), std::move(connected)};
  }
  TlsIdentity service() const { return identity_of(folder_, "ca", "service", "workload"); }
  TlsIdentity workload() const { return identity_of(folder_, "ca", "workload", "service"); }
  fs::path folder_;
  os::Fd listener_;
  std::string address_;
};

// With TLS 1.3 a client may learn of the server's refusal only when it reads.
bool usable(const TlsLink*, Result<os::Fd>& end) {
  if (!end) return false;
  uint8_t byte;
  auto said = os::read_exact(end->get(), {&byte, 1}, Deadline::in_ms(500));
  return said || said.error().code == Code::kDeadline;
}

}  // namespace

TEST_F(TlsLink, CarriesManyBytesBothWaysAtOnce) {
  auto ends = link(service(), workload());
  ASSERT_TRUE(ends.server && ends.client);
  Bytes one(3'000'000), two(2'500'000), got_one(one.size()), got_two(two.size());
  random_bytes(one);
  random_bytes(two);
  std::thread writer([&] { EXPECT_TRUE(os::write_all(ends.client->get(), one, Deadline::in_ms(10'000))); });
  std::thread other([&] { EXPECT_TRUE(os::write_all(ends.server->get(), two, Deadline::in_ms(10'000))); });
  std::thread reader([&] { EXPECT_TRUE(os::read_exact(ends.server->get(), got_one, Deadline::in_ms(10'000))); });
  EXPECT_TRUE(os::read_exact(ends.client->get(), got_two, Deadline::in_ms(10'000)));
  writer.join();
  other.join();
  reader.join();
  EXPECT_EQ(got_one, one);
  EXPECT_EQ(got_two, two);
}

TEST_F(TlsLink, EndsWhenEitherSideEnds) {
  auto ends = link(service(), workload());
  ASSERT_TRUE(ends.server && ends.client);
  ends.client->close();
  uint8_t byte;
  EXPECT_EQ(os::read_exact(ends.server->get(), {&byte, 1}, Deadline::in_ms(2000)).error().code, Code::kIo);
}

TEST_F(TlsLink, WhatWasWrittenBeforeTheEndArrives) {
  auto ends = link(service(), workload());
  ASSERT_TRUE(ends.server && ends.client);
  Bytes text(400'000, 'x'), got(text.size());
  std::thread writer([&] {
    EXPECT_TRUE(os::write_all(ends.client->get(), text, Deadline::in_ms(5000)));
    ends.client->close();
  });
  std::this_thread::sleep_for(
      std::chrono::milliseconds(100));  // the writer is ahead: its end is seen while bytes are on their way
  EXPECT_TRUE(os::read_exact(ends.server->get(), got, Deadline::in_ms(5000)));
  writer.join();
  EXPECT_EQ(got, text);
}

TEST_F(TlsLink, RefusesAnotherAuthorityAndAnotherName) {
  auto stranger = link(service(), identity_of(folder_, "otherca", "stranger", "service"));
  EXPECT_FALSE(stranger.server);
  EXPECT_FALSE(stranger.client);
  TlsIdentity borrowed = workload();  // trusts the right authority, but carries a certificate of another
  borrowed.certificate = folder_ / "stranger.pem";
  borrowed.private_key = folder_ / "stranger.key";
  auto wrong = link(service(), borrowed);
  EXPECT_FALSE(wrong.server);
  EXPECT_FALSE(usable(this, wrong.client));
  TlsIdentity misnamed = service();
  misnamed.peer_name = "someone-else";
  auto name = link(misnamed, workload());
  EXPECT_FALSE(name.server);
  TlsIdentity expects_other = workload();
  expects_other.peer_name = "someone-else";
  EXPECT_FALSE(link(service(), expects_other).client);
}

TEST_F(TlsLink, RefusesFilesItCannotUse) {
  TlsIdentity none = service();
  none.certificate = "/nonexistent";
  EXPECT_EQ(TlsContext::server(none).error().code, Code::kBadRequest);
  TlsIdentity mixed = service();
  mixed.private_key = folder_ / "workload.key";
  EXPECT_EQ(TlsContext::server(mixed).error().code, Code::kBadRequest) << "another certificate's key";
  TlsIdentity nameless = service();
  nameless.peer_name.clear();
  EXPECT_FALSE(TlsContext::server(nameless));
}

TEST_F(TlsLink, ASilentStrangerMeetsTheDeadline) {
  auto context = TlsContext::server(service());
  auto tcp = connect_tcp(address_, Deadline::in_ms(1000));
  auto accepted = os::accept_unix(listener_.get(), Deadline::in_ms(1000));
  ASSERT_TRUE(context && tcp && accepted);
  EXPECT_EQ(start_tls(*context, std::move(*accepted), Deadline::in_ms(100)).error().code, Code::kDeadline);
}

TEST(TcpAddress, IsHostAndPort) {
  EXPECT_EQ(listen_tcp("nowhere").error().code, Code::kBadRequest);
  EXPECT_EQ(connect_tcp(":1", Deadline::in_ms(10)).error().code, Code::kBadRequest);
}

}  // namespace tie::keys
