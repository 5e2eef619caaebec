#include "cache/store/store.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "cache/store/store_server.h"
#include "crypto/sha256.h"
#include "os/framed_message.h"
#include "os/process.h"
#include "store.pb.h"

namespace tie::cache {
namespace {

EntryId id(uint32_t number) {
  EntryId out{};
  for (int i = 0; i < 4; ++i) out[i] = static_cast<uint8_t>(number >> (8 * i));
  return out;
}

os::Fd memory(size_t bytes, int fill = 1, os::Seals seals = os::kSealAll) {
  os::Fd fd = *os::create_memfd("entry", bytes);
  {
    os::Mapping mapping = *os::Mapping::read_write(fd.get());
    std::memset(mapping.writable().data(), fill, bytes);
  }
  EXPECT_TRUE(os::add_seals(fd.get(), seals));
  return fd;
}

Result<void> put(Store& store, const Principal& who, uint32_t number, size_t bytes, int64_t now = 0,
                 uint32_t ttl = 1000) {
  return store.put(who, id(number), memory(bytes), bytes, ttl, now);
}

const Principal kAlice(32, 'a'), kBob(32, 'b');

TEST(Store, GivesBackWhatWasPutUntilItExpires) {
  Store store({});
  ASSERT_TRUE(put(store, kAlice, 1, 5000, 0, 1000));
  ASSERT_TRUE(put(store, kAlice, 2, kInlineBytes + 1, 0, 2000));
  EXPECT_EQ(store.get(id(1), 999)->bytes.size(), 5000u);
  EXPECT_GE(store.get(id(2), 999)->fd, 0);
  EXPECT_EQ(store.get(id(1), 1000).error().code, Code::kNotFound);
  store.expire(5000);
  EXPECT_EQ(store.counters().entries, 0u);
  EXPECT_EQ(store.counters().used_bytes, 0u);
}

TEST(Store, AnEntryIsWrittenOnceAndOnlyFromSealedMemoryOfTheStatedSize) {
  Store store({});
  ASSERT_TRUE(put(store, kAlice, 1, 100));
  EXPECT_EQ(put(store, kBob, 1, 100).error().code, Code::kAlreadyExists);
  EXPECT_EQ(store.put(kAlice, id(2), memory(100, 1, os::kSealSize), 100, 0, 0).error().code, Code::kPermissionDenied);
  EXPECT_EQ(store.put(kAlice, id(3), memory(100), 99, 0, 0).error().code, Code::kOutOfRange);
}

TEST(Store, APrincipalThatWritesWithoutEndPushesOutItsOwnEntries) {
  Store store({.capacity_bytes = 100'000});
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(put(store, kBob, 1000 + i, 5000));
  for (uint32_t i = 0; i < 200; ++i) ASSERT_TRUE(put(store, kAlice, i, 5000));
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(store.get(id(1000 + i), 0)) << i;
  EXPECT_EQ(store.counters().principals, 2u);
  EXPECT_FALSE(store.get(id(0), 0));
  EXPECT_TRUE(store.get(id(199), 0));
  EXPECT_LE(store.counters().used_bytes, 100'000u);
}

TEST(Store, AFullStoreOfManyKeepsTheFreshEntriesOfEachUnderAFlood) {
  Store store({.capacity_bytes = 1'000'000});
  auto who = [](int i) { return Principal(32, static_cast<char>('A' + i)); };
  for (uint32_t n = 0; n < 10; ++n)
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(put(store, who(i), uint32_t(i) * 100 + n, 10'000));
  for (uint32_t i = 0; i < 2000; ++i) ASSERT_TRUE(put(store, kAlice, 10'000 + i, 10'000));
  // The flood takes one principal's share of eleven, and from each the oldest.
  for (int i = 0; i < 10; ++i)
    for (uint32_t n = 1; n < 10; ++n) EXPECT_TRUE(store.get(id(uint32_t(i) * 100 + n), 0)) << i << " " << n;
  // Whoever comes during the flood gets in and stays.
  ASSERT_TRUE(put(store, kBob, 999'999, 10'000));
  for (uint32_t i = 0; i < 2000; ++i) ASSERT_TRUE(put(store, kAlice, 20'000 + i, 10'000));
  EXPECT_TRUE(store.get(id(999'999), 0));
}

TEST(Store, AFloodOfTinyEntriesIsAFlood) {
  Store store({.capacity_bytes = 10'000'000, .max_entries = 1000});
  for (uint32_t i = 0; i < 100; ++i) ASSERT_TRUE(put(store, kBob, i, 20'000));
  for (uint32_t i = 0; i < 5000; ++i) ASSERT_TRUE(put(store, kAlice, 10'000 + i, 1));
  for (uint32_t i = 0; i < 100; ++i) EXPECT_TRUE(store.get(id(i), 0)) << i;
  EXPECT_LE(store.counters().entries, 1000u);
}

TEST(Store, AFloodOfEmptyDescriptorsIsAFlood) {
  Store store({.capacity_bytes = 100'000'000, .max_descriptors = 20});
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(put(store, kBob, i, 2'000'000));
  for (uint32_t i = 0; i < 100; ++i) ASSERT_TRUE(put(store, kAlice, 100 + i, kInlineBytes + 1));
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(store.get(id(i), 0)) << i;
}

TEST(Store, AmongPrincipalsThatHoldAlikeTheOldestWriteGoes) {
  Store store({.capacity_bytes = 40'000});
  for (auto [who, number] : {std::pair{kBob, 1u}, {kAlice, 2u}, {kBob, 3u}, {kAlice, 4u}})
    ASSERT_TRUE(put(store, who, number, 10'000));
  ASSERT_TRUE(put(store, Principal(32, 'c'), 5, 10'000));
  EXPECT_FALSE(store.get(id(1), 0));
  ASSERT_TRUE(put(store, Principal(32, 'c'), 6, 10'000));
  EXPECT_FALSE(store.get(id(2), 0));
  for (uint32_t left : {3u, 4u, 5u, 6u}) EXPECT_TRUE(store.get(id(left), 0)) << left;
}

TEST(Store, HoldsTenThousandEntriesOf64KilobytesAndSegmentsOf25Megabytes) {
  Store store({});
  os::Fd shared = memory(64 << 10, 7);  // one memory for all: what the store keeps is its own copy
  for (uint32_t i = 0; i < 10'000; ++i)
    ASSERT_TRUE(store.put(kAlice, id(i), *shared.duplicate(), 64 << 10, 1000, 0)) << i;
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(put(store, kBob, 100'000 + i, 25 << 20));
  EXPECT_EQ(store.counters().entries, 10'008u);
  EXPECT_EQ(store.counters().evictions, 0u);
  EXPECT_EQ(store.get(id(9'999), 0)->bytes.size(), 64u << 10);
  EXPECT_EQ(store.get(id(100'007), 0)->size, 25u << 20);
}

TEST(Store, KeepsItsEntryLimitAndRefusesWhatNeverFits) {
  Store store({.capacity_bytes = 10'000, .max_entries = 3});
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(put(store, kAlice, i, 10));
  EXPECT_EQ(store.counters().entries, 3u);
  EXPECT_FALSE(store.get(id(1), 0));
  EXPECT_EQ(put(store, kAlice, 9, 10'001).error().code, Code::kTooLarge);
  EXPECT_EQ(store.counters().entries, 3u);
}

TEST(Store, CompareAndSwapLetsOneOfTwoBranchesWin) {
  Store store({});
  Bytes first = to_bytes("first"), second = to_bytes("second"), third = to_bytes("third");
  ASSERT_TRUE(store.compare_and_swap(kAlice, id(1), {}, first, 0, 0));
  EXPECT_EQ(store.compare_and_swap(kAlice, id(1), {}, second, 0, 0).error().code, Code::kAlreadyExists);
  auto digest = crypto::sha256(first);
  ASSERT_TRUE(store.compare_and_swap(kAlice, id(1), digest, second, 0, 0));
  EXPECT_EQ(store.compare_and_swap(kAlice, id(1), digest, third, 0, 0).error().code, Code::kAlreadyExists);
  EXPECT_EQ(to_string(store.get(id(1), 0)->bytes), "second");
}

// A daemon's loop in a thread, and a client.
class StoreServer : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "store-" + std::to_string(getpid()) + ".sock";
    listener_ = *os::listen_unix(path_);
    auto pair = *os::socket_pair();
    stop_read_ = std::move(pair.first);
    stop_write_ = std::move(pair.second);
    thread_ = std::thread([this] { ASSERT_TRUE(serve_store(store_, listener_.get(), stop_read_.get())); });
  }
  void TearDown() override {
    stop_write_.close();
    thread_.join();
  }
  os::Fd connect() { return *os::connect_unix(path_, Deadline::in_ms(1000)); }
  static v1::StoreReply ask(os::Fd& socket, const v1::StoreRequest& request, std::vector<os::Fd>* got = nullptr,
                            int fd = -1) {
    EXPECT_TRUE(os::send_message(socket.get(), request, Deadline::in_ms(1000),
                                 fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>()));
    auto reply = os::receive_message<v1::StoreReply>(socket.get(), 2 << 20, Deadline::in_ms(1000), 1);
    EXPECT_TRUE(reply) << (reply ? "" : reply.error().message);
    if (!reply) return {};
    if (got != nullptr) *got = std::move(reply->fds);
    return reply->message;
  }
  static v1::StoreRequest bind(const Principal& principal) {
    v1::StoreRequest request;
    request.mutable_bind()->set_principal(principal);
    return request;
  }
  static v1::StoreRequest put_request(uint32_t number, uint64_t bytes) {
    v1::StoreRequest request;
    request.mutable_put()->set_entry_id(id(number).data(), 32);
    request.mutable_put()->set_bytes(bytes);
    return request;
  }
  static v1::StoreRequest get_request(uint32_t number) {
    v1::StoreRequest request;
    request.mutable_get()->set_entry_id(id(number).data(), 32);
    return request;
  }

  Store store_{{.max_anonymous_bytes_per_connection = 1'000'000}};
  std::string path_;
  os::Fd listener_, stop_read_, stop_write_;
  std::thread thread_;
};

TEST_F(StoreServer, CarriesBulkByDescriptorAndSmallEntriesInline) {
  os::Fd socket = connect();
  EXPECT_FALSE(ask(socket, bind(kAlice)).has_error());
  os::Fd big = memory(500'000, 9), small = memory(600, 8);
  EXPECT_FALSE(ask(socket, put_request(1, 500'000), nullptr, big.get()).has_error());
  EXPECT_FALSE(ask(socket, put_request(2, 600), nullptr, small.get()).has_error());
  os::Fd other = connect();
  ask(other, bind(kBob));
  std::vector<os::Fd> fds;
  EXPECT_EQ(ask(other, get_request(1), &fds).bytes(), 500'000u);
  ASSERT_EQ(fds.size(), 1u);
  EXPECT_TRUE(os::require_seals(fds[0].get(), os::kSealAll));
  EXPECT_EQ(ask(other, get_request(2)).value(), std::string(600, 8));
  EXPECT_EQ(ask(other, get_request(3)).error().code(), v1::NOT_FOUND);
}

TEST_F(StoreServer, ThePrincipalComesFirstAndOnce) {
  os::Fd socket = connect();
  EXPECT_EQ(ask(socket, get_request(1)).error().code(), v1::FAILED_PRECONDITION);
  EXPECT_EQ(ask(socket, bind("short")).error().code(), v1::BAD_REQUEST);
  EXPECT_FALSE(ask(socket, bind(kAlice)).has_error());
  EXPECT_EQ(ask(socket, bind(kBob)).error().code(), v1::FAILED_PRECONDITION);
}

TEST_F(StoreServer, AnAnonymousRequestHasACap) {
  os::Fd socket = connect();
  ask(socket, bind(""));
  os::Fd big = memory(600'000);
  EXPECT_FALSE(ask(socket, put_request(1, 600'000), nullptr, big.get()).has_error());
  EXPECT_EQ(ask(socket, put_request(2, 600'000), nullptr, big.get()).error().code(), v1::TOO_LARGE);
}

TEST_F(StoreServer, APeerThatStopsInMidMessageOrDoesNotReadDelaysNobody) {
  os::Fd good = connect(), stops = connect(), deaf = connect();
  ask(good, bind(kAlice));
  ask(deaf, bind(kBob));
  v1::StoreRequest swap;
  swap.mutable_swap()->set_entry_id(id(7).data(), 32);
  swap.mutable_swap()->set_value(std::string(kMaxManifestBytes, 'v'));
  ASSERT_FALSE(ask(deaf, swap).has_error());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(os::send_message(deaf.get(), get_request(7), Deadline::in_ms(30'000)));
  uint8_t half[] = {0, 0};
  ASSERT_TRUE(os::write_all(stops.get(), half, Deadline::in_ms(100)));
  usleep(50'000);  // both are being waited for
  EXPECT_EQ(ask(good, get_request(1)).error().code(), v1::NOT_FOUND);
  // Were they served one after the other, those two would have been given up by now.
  pollfd ended[] = {{stops.get(), POLLIN, 0}, {deaf.get(), POLLRDHUP, 0}};
  EXPECT_EQ(poll(ended, 2, 0), 0);
}

TEST_F(StoreServer, RubbishEndsItsConnectionAlone) {
  os::Fd good = connect(), bad = connect();
  ask(good, bind(kAlice));
  uint8_t rubbish[] = {0, 0, 0, 3, 0xff, 0xff, 0xff};
  ASSERT_TRUE(os::write_all(bad.get(), rubbish, Deadline::in_ms(100)));
  uint8_t byte;
  EXPECT_FALSE(os::read_exact(bad.get(), std::span(&byte, 1), Deadline::in_ms(2000)));
  EXPECT_EQ(ask(good, get_request(1)).error().code(), v1::NOT_FOUND);
}

}  // namespace
}  // namespace tie::cache
