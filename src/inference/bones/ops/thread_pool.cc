#include "inference/bones/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tie::bones {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Subnormal numbers cost a microcode assist each and mean nothing here: flush them while a job runs, on every thread
// alike.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

// n of the CPUs that this process may use, from the first-th on; empty when there are fewer.
std::vector<int> own_cpus(uint32_t first, uint32_t n) {
  std::vector<int> out;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return out;
  uint32_t seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && out.size() < n; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && seen++ >= first) out.push_back(cpu);
  if (out.size() < n) out.clear();
  return out;
}

// Where it is not allowed the thread stays free, which is only slower.
void stay_on(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  (void)!::sched_setaffinity(0, sizeof one, &one);
}

// How long a thread spins at a barrier before it sleeps. On a quiet machine the others are microseconds away and
// sleeping costs 50; on a busy one the late thread has lost its core to another process for milliseconds, and whoever
// sleeps meanwhile gets its own core back sooner than one that spins. So each sleep halves the patience and each
// meeting without one restores some. A pause is about 12 ns: 6 to 100 us.
constexpr uint32_t kLeastSpins = 500, kMostSpins = 8000, kSpinsRegained = 64;
thread_local uint32_t patience = kMostSpins;

}  // namespace

struct ThreadPool::State {
  ThreadPoolOptions options;
  std::vector<int> cpus;  // one for each thread, or none: threads go where the kernel likes
  std::vector<std::thread> workers;
  void (*body)(void*, uint32_t) = nullptr;
  void* context = nullptr;
  alignas(64) std::atomic<uint32_t> epoch{0};  // one more for each job; workers sleep on it
  std::atomic<uint32_t> sleepers{0};
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<uint32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> generation{0};
  std::atomic<uint32_t> waiting{0};  // sleepers at the barrier

  void wait_at_barrier() {
    const uint32_t n = options.n_threads;
    if (n == 1) return;
    const uint32_t mine = generation.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == n) {
      arrived.store(0, std::memory_order_relaxed);
      generation.store(mine + 1, std::memory_order_seq_cst);
      if (waiting.load(std::memory_order_seq_cst) != 0) generation.notify_all();
      return;
    }
    for (uint32_t spins = 0; spins < patience; ++spins) {
      if (generation.load(std::memory_order_acquire) != mine) {
        patience = std::min(patience + kSpinsRegained, kMostSpins);
        return;
      }
      relax();
    }
    patience = std::max(patience / 2, kLeastSpins);
    waiting.fetch_add(1, std::memory_order_seq_cst);
    while (generation.load(std::memory_order_seq_cst) == mine) generation.wait(mine, std::memory_order_seq_cst);
    waiting.fetch_sub(1, std::memory_order_seq_cst);
  }

  // Returns the new epoch: spins for idle_spin_us, then sleeps.
  uint32_t wait_for_job(uint32_t seen) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(options.idle_spin_us);
    for (uint32_t spins = 0;; ++spins) {
      const uint32_t now = epoch.load(std::memory_order_acquire);
      if (now != seen) return now;
      relax();
      if (spins % 64 == 63 && std::chrono::steady_clock::now() >= until) break;
    }
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (epoch.load(std::memory_order_seq_cst) == seen) epoch.wait(seen, std::memory_order_seq_cst);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return epoch.load(std::memory_order_acquire);
  }

  void announce() {
    epoch.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) epoch.notify_all();
  }

  void work(uint32_t thread) {
    if (!cpus.empty()) stay_on(cpus[thread]);
    const FlushSubnormals flush;
    uint32_t seen = 0;
    for (;;) {
      seen = wait_for_job(seen);
      if (stop.load(std::memory_order_acquire)) return;
      body(context, thread);
      wait_at_barrier();
    }
  }
};

ThreadPool::ThreadPool(ThreadPoolOptions options) : state_(std::make_unique<State>()) {
  options.n_threads = std::clamp(options.n_threads, 1u, 256u);
  state_->options = options;
  if (options.own_cpus) state_->cpus = own_cpus(options.first_cpu, options.n_threads);
  for (uint32_t i = 1; i < options.n_threads; ++i)
    state_->workers.emplace_back([state = state_.get(), i] { state->work(i); });
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->announce();
  for (std::thread& worker : state_->workers) worker.join();
}

uint32_t ThreadPool::size() const {
  return state_->options.n_threads;
}

void ThreadPool::keep_caller_on_its_cpu() {
  if (!state_->cpus.empty()) stay_on(state_->cpus.front());
}

void ThreadPool::run(void (*body)(void* context, uint32_t thread), void* context) {
  const FlushSubnormals flush;
  state_->body = body;
  state_->context = context;
  if (state_->options.n_threads > 1) state_->announce();
  body(context, 0);
  state_->wait_at_barrier();
}

void ThreadPool::barrier() {
  state_->wait_at_barrier();
}

}  // namespace tie::bones
