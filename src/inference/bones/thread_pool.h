// The compute threads of one model: the caller plus n-1 workers that run the same function and meet at barriers.
// Workers spin for a short while after a job (a decode step follows within microseconds) and then sleep on a futex, so
// an idle node uses no CPU. One job at a time, from one caller thread at a time. Owns its threads; they end with the
// object. Nothing is allocated by run() or barrier().
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace tie::bones {

struct ThreadPoolOptions {
  uint32_t n_threads = 1;       // 1..256, the caller included
  uint32_t idle_spin_us = 200;  // how long a worker spins for the next job before it sleeps
  // Thread i stays on the i-th CPU that the process may use, provided there are as many as threads. For a process that
  // has the machine's CPUs to itself: a virtual machine's kernel often takes a CPU that its host has put to sleep for a
  // busy one, wakes one thread on the other's CPU and leaves both there, one at a time.
  bool own_cpus = false;
  uint32_t first_cpu = 0;  // with own_cpus: thread 0's; further processes of one model begin behind this one's
};

class ThreadPool {
 public:
  explicit ThreadPool(ThreadPoolOptions options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t size() const;
  // With own_cpus: the calling thread, which is to be the one that calls run(), stays on thread 0's CPU.
  void keep_caller_on_its_cpu();

  // Calls body(context, thread) on every thread, 0 being the caller; returns when all have returned. The body must not
  // throw.
  void run(void (*body)(void* context, uint32_t thread), void* context);
  template <typename Body>
  void run(Body& body) {
    run([](void* context, uint32_t thread) { (*static_cast<Body*>(context))(thread); }, &body);
  }

  // Inside a job: returns when every thread has called it the same number of times. Writes before it are visible after
  // it.
  void barrier();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tie::bones
