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
};

class ThreadPool {
 public:
  explicit ThreadPool(ThreadPoolOptions options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t size() const;

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
