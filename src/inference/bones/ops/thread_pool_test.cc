#include "inference/bones/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>

#include <chrono>
#include <thread>
#include <vector>

namespace tie::bones {
namespace {

double process_cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

TEST(ThreadPool, RunsTheBodyOnceOnEveryThread) {
  for (uint32_t n : {1u, 2u, 3u, 5u}) {
    ThreadPool pool({n});
    EXPECT_EQ(pool.size(), n);
    for (int round = 0; round < 200; ++round) {
      std::vector<int> calls(n, 0);
      auto body = [&](uint32_t thread) { ++calls[thread]; };
      pool.run(body);
      EXPECT_EQ(calls, std::vector<int>(n, 1));
    }
  }
}

TEST(ThreadPool, ThreadsStayOnCpusOfTheirOwnWhenAskedTo) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "one CPU only";
  std::thread caller([] {  // a thread of its own, because it stays where it is put
    ThreadPool pool({.n_threads = 2, .own_cpus = true});
    pool.keep_caller_on_its_cpu();
    cpu_set_t seen[2];
    auto body = [&](uint32_t thread) { ::sched_getaffinity(0, sizeof seen[thread], &seen[thread]); };
    pool.run(body);
    EXPECT_EQ(CPU_COUNT(&seen[0]), 1);
    EXPECT_EQ(CPU_COUNT(&seen[1]), 1);
    EXPECT_FALSE(CPU_EQUAL(&seen[0], &seen[1]));
  });
  caller.join();
  caller = std::thread([] {  // as the second of two processes of one thread
    cpu_set_t free, first, second;
    ::sched_getaffinity(0, sizeof free, &free);
    ThreadPool one({.n_threads = 1, .own_cpus = true}), other({.n_threads = 1, .own_cpus = true, .first_cpu = 1});
    one.keep_caller_on_its_cpu();
    ::sched_getaffinity(0, sizeof first, &first);
    other.keep_caller_on_its_cpu();
    ::sched_getaffinity(0, sizeof second, &second);
    EXPECT_EQ(CPU_COUNT(&first), 1);
    EXPECT_EQ(CPU_COUNT(&second), 1);
    EXPECT_FALSE(CPU_EQUAL(&first, &second));
  });
  caller.join();
}

TEST(ThreadPool, ThreadsAreFreeWhenThereAreFewerCpusThanThreads) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  ThreadPool pool({.n_threads = static_cast<uint32_t>(CPU_COUNT(&allowed)) + 1, .own_cpus = true});
  pool.keep_caller_on_its_cpu();
  std::vector<int> counts(pool.size());
  auto body = [&](uint32_t thread) {
    cpu_set_t seen;
    ::sched_getaffinity(0, sizeof seen, &seen);
    counts[thread] = CPU_COUNT(&seen);
  };
  pool.run(body);
  EXPECT_EQ(counts, std::vector<int>(pool.size(), CPU_COUNT(&allowed)));
}

TEST(ThreadPool, WritesBeforeABarrierAreSeenAfterIt) {
  constexpr uint32_t kThreads = 3, kRounds = 2000;
  ThreadPool pool({kThreads});
  uint32_t values[kThreads][16] = {};
  std::atomic<uint32_t> wrong{0};
  auto body = [&](uint32_t thread) {
    for (uint32_t round = 1; round <= kRounds; ++round) {
      values[thread][0] = round;
      pool.barrier();
      for (const auto& value : values) wrong += value[0] != round;
      pool.barrier();
    }
  };
  pool.run(body);
  EXPECT_EQ(wrong.load(), 0u);
}

TEST(ThreadPool, WakesWorkersThatSleepAndUsesNoCpuMeanwhile) {
  ThreadPool pool({.n_threads = 3, .idle_spin_us = 10});
  std::atomic<uint32_t> calls{0};
  auto body = [&](uint32_t) { ++calls; };
  pool.run(body);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(process_cpu_seconds() - before, 0.05);
  for (int i = 0; i < 50; ++i) {
    pool.run(body);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // long enough to fall asleep again
  }
  EXPECT_EQ(calls.load(), 3u * 51);
}

}  // namespace
}  // namespace tie::bones
