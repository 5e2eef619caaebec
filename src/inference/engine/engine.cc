#include "inference/engine/engine.h"

#include <pthread.h>

namespace tie::engine {
namespace {
constexpr size_t kTransferBytes = size_t{8} << 20;  // KV blocks copied between two steps: a few milliseconds
constexpr auto kIdleLook =
    std::chrono::milliseconds(5);  // paused requests and deadlines are looked at this often while nothing computes
}  // namespace

Engine::Engine(std::unique_ptr<EngineCore> core, std::function<void()> step_done)
    : core_(std::move(core)),
      step_done_(std::move(step_done)),
      max_in_flight_(core_->limits().max_waiting + core_->limits().max_sequences),
      thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "engine");
}

Engine::~Engine() {
  stop_accepting();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

Result<std::shared_ptr<RequestHandle>> Engine::submit(RequestSpec spec) {
  if (!accepting_) return fail(Code::kNotReady, "the runtime is draining and takes no new requests");
  if (in_flight_.fetch_add(1) >= max_in_flight_) {
    in_flight_.fetch_sub(1);
    return fail(Code::kOverloaded, "too many requests are waiting");
  }
  auto request = core_->prepare(std::move(spec));
  if (!request) {
    in_flight_.fetch_sub(1);
    return std::unexpected(std::move(request.error()));
  }
  auto handle = (*request)->handle;
  {
    std::lock_guard lock(mutex_);
    submitted_.push_back(std::move(*request));
  }
  wake();
  return handle;
}

void Engine::cancel(RequestHandle& handle) {
  handle.cancelled.store(true, std::memory_order_relaxed);
  wake();
}

void Engine::wake() {
  if (has_news_.exchange(true)) return;
  std::lock_guard lock(mutex_);  // the engine is either before its check of has_news_ or asleep
  wake_.notify_one();
}

bool Engine::wait_idle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms()), [&] { return in_flight_ == 0; });
}

uint32_t Engine::take_submitted() {
  if (!has_news_.exchange(false)) return 0;
  {
    std::lock_guard lock(mutex_);
    taken_.swap(submitted_);
  }
  uint32_t refused = 0;
  for (auto& request : taken_) {
    auto sink = request->spec.sink;
    Usage usage = request->usage;
    if (auto added = core_->add(std::move(request)); !added) {
      sink->on_end(usage, &added.error());
      ++refused;
    }
  }
  taken_.clear();
  return refused;
}

void Engine::count_ended(uint32_t ended) {
  if (ended == 0 || in_flight_.fetch_sub(ended) != ended) return;
  std::lock_guard lock(mutex_);
  idle_.notify_all();
}

void Engine::run() {
  core_->begin_thread();
  uint64_t ended_before = 0;
  for (;;) {
    uint32_t refused = take_submitted();
    bool worked = core_->step(monotonic_us());
    auto ended = static_cast<uint32_t>(core_->n_ended() - ended_before) + refused;
    ended_before = core_->n_ended();
    if (step_done_ && (worked || ended > 0)) step_done_();
    count_ended(ended);
    worked |= core_->transfer(kTransferBytes);
    if (!worked) core_->settle();
    if (stopping_) break;
    if (worked) continue;
    auto news = [&] { return has_news_.load() || stopping_.load(); };
    std::unique_lock lock(mutex_);
    if (core_->idle())
      wake_.wait(lock, news);
    else
      wake_.wait_for(lock, kIdleLook, news);
  }
  take_submitted();
  core_->end_all({Code::kNotReady, "the runtime is stopping"});
  if (step_done_) step_done_();
}

}  // namespace tie::engine
