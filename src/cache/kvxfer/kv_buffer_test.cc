#include "cache/kvxfer/kv_buffer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "os/process.h"
#include "os/unix_socket.h"

namespace tie::cache {
namespace {

KvDescription description(uint32_t blocks = 4, uint64_t bytes = 10'000) {
  KvDescription d{.block_count = blocks, .block_tokens = 16, .block_bytes = bytes};
  d.model_id.fill(1);
  return d;
}

std::vector<std::byte> payload(int fill, size_t bytes = 10'000) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(fill));
}

Deadline soon() {
  return Deadline::in_ms(2000);
}

KvConsumer consumer_of(const KvProducer& producer) {
  return *KvConsumer::attach(os::Fd(dup(producer.fd())));
}

TEST(KvBuffer, CarriesBlocksInAnyOrder) {
  KvProducer producer = *KvProducer::create(description());
  KvConsumer consumer = consumer_of(producer);
  EXPECT_EQ(consumer.description(), description());
  for (uint32_t i : {2u, 0u, 3u}) ASSERT_TRUE(producer.write_block(i, payload(i)));
  producer.finish(48);
  std::vector<std::byte> out(10'000);
  for (uint32_t i : {0u, 2u, 3u}) {
    ASSERT_TRUE(consumer.wait_block(i, soon()));
    ASSERT_TRUE(consumer.read_block(i, out));
    EXPECT_EQ(out, payload(i));
  }
  EXPECT_EQ(*consumer.wait_finished(soon()), 48u);
  EXPECT_EQ(consumer.wait_block(1, soon()).error().code, Code::kNotFound);
  EXPECT_EQ(consumer.read_block(1, out).error().code, Code::kFailedPrecondition);
}

TEST(KvBuffer, ACommittedBlockIsNeverOverwritten) {
  KvProducer producer = *KvProducer::create(description());
  ASSERT_TRUE(producer.write_block(0, payload(5)));
  EXPECT_EQ(producer.write_block(0, payload(6)).error().code, Code::kAlreadyExists);
  EXPECT_EQ(producer.commit_block(0).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(producer.commit_block(1).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(producer.begin_block(4).error().code, Code::kOutOfRange);
  ASSERT_TRUE(producer.begin_block(1));
  EXPECT_EQ(consumer_of(producer).committed_block(1).error().code, Code::kFailedPrecondition);
}

TEST(KvBuffer, AWaitEndsAtItsDeadline) {
  KvProducer producer = *KvProducer::create(description());
  KvConsumer consumer = consumer_of(producer);
  int64_t before = monotonic_ms();
  EXPECT_EQ(consumer.wait_block(0, Deadline::in_ms(60)).error().code, Code::kDeadline);
  EXPECT_GE(monotonic_ms() - before, 60);
  EXPECT_EQ(consumer.wait_finished(Deadline::in_ms(1)).error().code, Code::kDeadline);
}

TEST(KvBuffer, ACommitFromAnotherThreadWakesTheWaiter) {
  KvProducer producer = *KvProducer::create(description());
  KvConsumer consumer = consumer_of(producer);
  std::thread writer([&] {
    usleep(30'000);
    ASSERT_TRUE(producer.write_block(3, payload(9)));
    producer.finish(64);
  });
  EXPECT_TRUE(consumer.wait_block(3, soon()));
  EXPECT_EQ(*consumer.wait_finished(soon()), 64u);
  writer.join();
}

TEST(KvBuffer, TheDeathOfTheWriterWakesTheWaiterWithAnError) {
  auto [ours, theirs] = *os::socket_pair();
  KvProducer producer = *KvProducer::create(description());
  KvConsumer consumer = consumer_of(producer);
  pid_t child = fork();
  if (child == 0) {
    ours.close();
    (void)producer.write_block(0, payload(1));
    pause();
    _exit(0);
  }
  theirs.close();
  EXPECT_TRUE(consumer.wait_block(0, soon(), ours.get()));
  os::Fd pidfd = *os::pidfd_open(child);
  std::thread killer([child] {
    usleep(50'000);
    kill(child, SIGKILL);
  });
  int64_t before = monotonic_ms();
  EXPECT_EQ(consumer.wait_block(1, Deadline::in_ms(5000), ours.get()).error().code, Code::kRuntimeLost);
  EXPECT_LT(monotonic_ms() - before, 1000);
  EXPECT_EQ(consumer.wait_finished(Deadline::in_ms(5000), pidfd.get()).error().code, Code::kRuntimeLost);
  killer.join();
  waitpid(child, nullptr, 0);
}

TEST(KvBuffer, AbortAndDestructionTellTheConsumerAndZeroThePayload) {
  auto producer = std::make_unique<KvProducer>(*KvProducer::create(description()));
  KvConsumer consumer = consumer_of(*producer);
  ASSERT_TRUE(producer->write_block(0, payload(77)));
  producer.reset();
  EXPECT_EQ(consumer.wait_block(1, soon()).error().code, Code::kRuntimeLost);
  std::vector<std::byte> out(10'000);
  ASSERT_TRUE(consumer.read_block(0, out));
  EXPECT_EQ(out, payload(0));
}

TEST(KvBuffer, RefusesABufferWhoseSizeIsNotSealedOrWhoseHeaderLies) {
  EXPECT_EQ(KvConsumer::attach(*os::create_memfd("unsealed", 100'000)).error().code, Code::kPermissionDenied);
  KvProducer producer = *KvProducer::create(description());
  os::Mapping original = *os::Mapping::read_only(producer.fd());
  // Each 4-byte word of the header set to ones: refused, or the same description.
  for (size_t at = 0; at < 128 + 24; at += 4) {
    os::Fd copy = *os::create_memfd("lying", original.size());
    os::Mapping writable = *os::Mapping::read_write(copy.get());
    std::memcpy(writable.writable().data(), original.bytes().data(), original.size());
    std::memset(writable.writable().data() + at, 0xff, 4);
    ASSERT_TRUE(os::add_seals(copy.get(), os::kSealSize));
    auto attached = KvConsumer::attach(std::move(copy));
    if (attached) EXPECT_EQ(attached->description().block_bytes * attached->description().block_count, 40'000u) << at;
  }
}

TEST(KvBuffer, NobodyShrinksIt) {
  KvProducer producer = *KvProducer::create(description());
  EXPECT_NE(ftruncate(producer.fd(), 4096), 0);
  EXPECT_NE(ftruncate(producer.fd(), 1 << 24), 0);
}

TEST(KvBuffer, RefusesImpossibleShapes) {
  EXPECT_EQ(KvProducer::create(description(0)).error().code, Code::kOutOfRange);
  EXPECT_EQ(KvProducer::create(description(kMaxKvBlocks + 1)).error().code, Code::kOutOfRange);
  EXPECT_EQ(KvProducer::create(description(2, kMaxKvBufferBytes)).error().code, Code::kOutOfRange);
  EXPECT_EQ(KvProducer::create(description(2, UINT64_MAX)).error().code, Code::kOutOfRange);
}

}  // namespace
}  // namespace tie::cache
