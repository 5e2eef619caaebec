// kvxfer.sock against apps that behave and apps that do not: what is refused, what a handle can do and when it dies.
#include "inference/hosts/server/kvxfer_service.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>

#include "base/random.h"
#include "kvxfer.pb.h"
#include "os/framed_message.h"

namespace tie::runtime_host {
namespace {

const std::string kHandle(16, 'h');

cache::KvDescription own() {
  cache::KvDescription d{.block_count = 8, .block_tokens = 16, .block_bytes = 4096};
  d.model_id.fill(1);
  d.release_id.fill(2);
  d.layout_id.fill(3);
  return d;
}

class KvxferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::temp_directory_path() / ("kvxfer-" + random_hex(6))).string();
    service = *KvxferService::start(*os::listen_unix(path_), own());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  struct Reply {
    v1::KvxferReply message;
    std::vector<os::Fd> fds;
    Code code() const { return static_cast<Code>(message.error().code()); }
  };
  os::Fd connect() { return *os::connect_unix(path_, Deadline::in_ms(1000)); }
  Reply ask(const os::Fd& app, const v1::KvxferRequest& request, int fd = -1) {
    auto fds = fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
    EXPECT_TRUE(os::send_message(app.get(), request, Deadline::in_ms(1000), fds));
    auto reply = os::receive_message<v1::KvxferReply>(app.get(), 4096, Deadline::in_ms(2000), 1);
    EXPECT_TRUE(reply) << reply.error().message;
    return {std::move(reply->message), std::move(reply->fds)};
  }
  Reply offer(const os::Fd& app, int fd, const std::string& handle = kHandle) {
    v1::KvxferRequest request;
    request.mutable_offer_import()->set_handle(handle);
    return ask(app, request, fd);
  }
  Reply request_export(const os::Fd& app, uint32_t max_tokens, uint32_t first = 0,
                       const std::string& handle = kHandle) {
    v1::KvxferRequest request;
    request.mutable_request_export()->set_handle(handle);
    request.mutable_request_export()->set_max_tokens(max_tokens);
    request.mutable_request_export()->set_first_token(first);
    return ask(app, request);
  }
  // Waits until the service has noticed that an app hung up.
  template <typename Check>
  bool soon(Check&& check) {
    for (int i = 0; i < 1000; ++i) {
      if (check()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
  std::string path_;
  std::unique_ptr<KvxferService> service;
};

cache::KvProducer filled(cache::KvDescription d, uint32_t blocks, uint32_t tokens) {
  auto producer = *cache::KvProducer::create(d);
  for (uint32_t i = 0; i < blocks; ++i) {
    std::vector<std::byte> block(d.block_bytes, static_cast<std::byte>(i + 1));
    EXPECT_TRUE(producer.write_block(i, block));
  }
  producer.finish(tokens);
  return producer;
}

TEST_F(KvxferTest, SaysWhatItsBlocksAre) {
  auto app = connect();
  v1::KvxferRequest request;
  request.mutable_describe();
  auto reply = ask(app, request);
  EXPECT_EQ(reply.message.model_id(), std::string(32, 1));
  EXPECT_EQ(reply.message.layout_id(), std::string(32, 3));
  EXPECT_EQ(reply.message.block_tokens(), 16u);
  EXPECT_EQ(reply.message.block_bytes(), 4096u);
}

TEST_F(KvxferTest, AnOfferedBufferIsTakenOnceByItsHandle) {
  auto d = own();
  d.block_count = 2;
  auto producer = filled(d, 2, 32);
  auto app = connect();
  ASSERT_FALSE(offer(app, producer.fd()).message.has_error());
  EXPECT_EQ(service->take_import(std::string(16, 'x')), nullptr);
  auto taken = service->take_import(kHandle);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(service->take_import(kHandle), nullptr);
  EXPECT_EQ(taken->block_count(), 2u);
  std::vector<std::byte> out(4096);
  ASSERT_TRUE(taken->read(1, out));
  EXPECT_EQ(out[4095], std::byte{2});
  EXPECT_FALSE(taken->read(2, out));
}

TEST_F(KvxferTest, ABufferMayEndBeforeItsLastBlock) {
  auto d = own();
  d.block_count = 5;
  auto producer = filled(d, 3, 48);
  auto app = connect();
  ASSERT_FALSE(offer(app, producer.fd()).message.has_error());
  EXPECT_EQ(service->take_import(kHandle)->block_count(), 3u);
}

TEST_F(KvxferTest, RefusesWhatIsNotItsOwn) {
  auto refused = [&](cache::KvDescription d, uint32_t blocks, uint32_t tokens, const std::string& handle = kHandle) {
    auto producer = filled(d, blocks, tokens);
    auto app = connect();
    bool error = offer(app, producer.fd(), handle).message.has_error();
    return error && service->take_import(handle) == nullptr;
  };
  auto d = own();
  d.block_count = 2;
  auto with = [&](auto change) {
    auto changed = d;
    change(changed);
    return changed;
  };
  EXPECT_TRUE(refused(with([](auto& c) { c.model_id[0] = 9; }), 2, 32));
  EXPECT_TRUE(refused(with([](auto& c) { c.release_id[31] = 9; }), 2, 32));
  EXPECT_TRUE(refused(with([](auto& c) { c.layout_id[5] = 9; }), 2, 32));
  EXPECT_TRUE(refused(with([](auto& c) { c.block_tokens = 32; }), 2, 64));
  EXPECT_TRUE(refused(with([](auto& c) { c.block_bytes = 2048; }), 2, 32));
  EXPECT_TRUE(refused(with([](auto& c) { c.block_count = 9; }), 9, 9 * 16)) << "more than a sequence has";
  EXPECT_TRUE(refused(d, 1, 32)) << "a block is missing";
  EXPECT_TRUE(refused(d, 2, 31));
  EXPECT_TRUE(refused(d, 2, 32, "short"));
  EXPECT_EQ(service->refused_imports(), 9u);
}

TEST_F(KvxferTest, RefusesABufferThatIsStillOpenOrCouldShrink) {
  auto d = own();
  d.block_count = 1;
  auto open = *cache::KvProducer::create(d);
  std::vector<std::byte> block(4096);
  ASSERT_TRUE(open.write_block(0, block));
  auto app = connect();
  EXPECT_TRUE(offer(app, open.fd()).message.has_error());
  auto unsealed = *os::create_memfd("unsealed", 3 * 4096);
  auto other = connect();
  EXPECT_EQ(offer(other, unsealed.get()).code(), Code::kPermissionDenied);
}

TEST_F(KvxferTest, AHandleDiesWithItsConnection) {
  auto d = own();
  d.block_count = 1;
  auto producer = filled(d, 1, 16);
  {
    auto app = connect();
    ASSERT_FALSE(offer(app, producer.fd()).message.has_error());
    ASSERT_FALSE(request_export(app, 64, 0, std::string(16, 'e')).message.has_error());
  }
  auto later = connect();
  v1::KvxferRequest request;
  request.mutable_describe();
  ask(later, request);  // served after the hang-up was seen
  EXPECT_EQ(service->take_import(kHandle), nullptr);
  EXPECT_EQ(service->take_export(std::string(16, 'e')), nullptr);
}

TEST_F(KvxferTest, AnotherConnectionCannotTakeAHandleOver) {
  auto d = own();
  d.block_count = 1;
  auto producer = filled(d, 1, 16), other = filled(d, 1, 16);
  auto app = connect(), thief = connect();
  ASSERT_FALSE(offer(app, producer.fd()).message.has_error());
  EXPECT_EQ(offer(thief, other.fd()).code(), Code::kAlreadyExists);
  thief.close();
  auto later = connect();
  v1::KvxferRequest request;
  request.mutable_describe();
  ask(later, request);
  EXPECT_NE(service->take_import(kHandle), nullptr) << "the thief's end does not end it either";
}

TEST_F(KvxferTest, AnExportIsReadWhileItIsFilledAndZeroedAfterwards) {
  auto app = connect();
  auto reply = request_export(app, 100, 32);
  ASSERT_EQ(reply.fds.size(), 1u);
  auto mine = reply.fds[0].duplicate();
  auto consumer = *cache::KvConsumer::attach(std::move(reply.fds[0]));
  EXPECT_EQ(consumer.description().block_count, 6u);
  auto out = service->take_export(kHandle);
  ASSERT_NE(out, nullptr);
  EXPECT_EQ(out->first_block(), 2u);
  EXPECT_EQ(out->max_blocks(), 6u);
  EXPECT_FALSE(service->wait_quiet(Deadline::in_ms(5)));
  std::vector<std::byte> block(4096, std::byte{7});
  ASSERT_TRUE(out->write(0, block));
  EXPECT_TRUE(consumer.wait_block(0, Deadline::in_ms(30'000), app.get()));
  out->finish(1);
  out.reset();
  EXPECT_EQ(*consumer.wait_finished(Deadline::in_ms(30'000)), 16u);
  EXPECT_EQ((*consumer.committed_block(0))[100], std::byte{7});
  app.close();
  EXPECT_TRUE(service->wait_quiet(Deadline::in_ms(30'000)));
  EXPECT_TRUE(soon([&] { return (*consumer.committed_block(0))[100] == std::byte{0}; }));
}

TEST_F(KvxferTest, AnAppThatGoesEndsItsExport) {
  auto app = connect();
  ASSERT_FALSE(request_export(app, 64).message.has_error());
  auto out = service->take_export(kHandle);
  std::vector<std::byte> block(4096);
  ASSERT_TRUE(out->write(0, block));
  app.close();
  uint32_t at = 1;
  EXPECT_TRUE(soon([&] { return !out->write(at++ % 4, block); }));
  out->abandon();
}

TEST_F(KvxferTest, LimitsOfAnExport) {
  auto app = connect();
  EXPECT_EQ(request_export(app, 15).code(), Code::kOutOfRange);
  EXPECT_EQ(request_export(app, 16, 5).code(), Code::kOutOfRange);
  EXPECT_EQ(request_export(app, 16, 8 * 16).code(), Code::kOutOfRange);
  EXPECT_EQ(request_export(app, 16, 0, "x").code(), Code::kBadRequest);
  auto most = request_export(app, 1000, 32);
  ASSERT_EQ(most.fds.size(), 1u);
  EXPECT_EQ(cache::KvConsumer::attach(std::move(most.fds[0]))->description().block_count, 6u) << "a sequence has eight";
  EXPECT_EQ(request_export(app, 16, 0, std::string(16, 'z')).code(), Code::kFailedPrecondition);
}

TEST_F(KvxferTest, NoiseEndsItsOwnConnectionOnly) {
  auto app = connect();
  auto noisy = connect(), half = connect();
  const char bytes[] = "\xff\xff\xff\xff garbage";
  ASSERT_GT(::send(noisy.get(), bytes, sizeof bytes, MSG_NOSIGNAL), 0);
  ASSERT_GT(::send(half.get(), "\0\0\0\x20 half", 9, MSG_NOSIGNAL), 0);
  v1::KvxferRequest request;
  request.mutable_describe();
  EXPECT_FALSE(ask(app, request).message.has_error());
  char byte;
  EXPECT_LE(::recv(noisy.get(), &byte, 1, 0), 0);
  EXPECT_LE(::recv(half.get(), &byte, 1, 0), 0);
}

}  // namespace
}  // namespace tie::runtime_host
