// What the load programs measure and how they print it: one JSON line, times in milliseconds, so that bench/run.py can
// set the private path beside the engine alone. Threads: add() from any.
#pragma once
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tie::bench {

using Clock = std::chrono::steady_clock;

// One closed loop: `clients` clients, each sends its next request when its last one has ended.
struct LoadOptions {
  uint32_t clients = 1, requests = 1, prompt_tokens = 128, tokens = 64;
  uint32_t pause_ms = 0;  // between one client's requests: with it, what a person meets who asks now and then
};

struct RequestTimes {
  double first_ms = 0, total_ms = 0;
  uint32_t tokens = 0, events = 0;  // events that carried text
};

inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class LoadReport {
 public:
  void add(const RequestTimes& times) {
    std::lock_guard lock(mutex_);
    done_.push_back(times);
  }

  void print() {
    double seconds = ms_since(began_) / 1000;
    rusage own{};
    ::getrusage(RUSAGE_SELF, &own);
    auto cpu_ms = [](const timeval& t) { return 1e3 * static_cast<double>(t.tv_sec) + 1e-3 * double(t.tv_usec); };
    std::sort(done_.begin(), done_.end(), [](const auto& a, const auto& b) { return a.first_ms < b.first_ms; });
    uint64_t tokens = 0, events = 0;
    for (const auto& one : done_) tokens += one.tokens, events += one.events;
    auto at = [&](double part) {
      return done_.empty() ? 0.0 : done_[std::min(done_.size() - 1, size_t(part * double(done_.size())))].first_ms;
    };
    fmt::print(
        "{{\"requests\": {}, \"tokens\": {}, \"events\": {}, \"seconds\": {:.4f}, \"tokens_per_s\": {:.1f}, "
        "\"first_ms_p50\": {:.2f}, \"first_ms_p95\": {:.2f}, \"own_cpu_ms\": {:.1f}}}\n",
        done_.size(), tokens, events, seconds, double(tokens) / seconds, at(0.5), at(0.95),
        cpu_ms(own.ru_utime) + cpu_ms(own.ru_stime) - cpu_before_ms_);
  }

  // The clock and the CPU count start here: what was loaded before does not count.
  void begin() {
    rusage own{};
    ::getrusage(RUSAGE_SELF, &own);
    cpu_before_ms_ = 1e3 * double(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
                     1e-3 * double(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
    began_ = Clock::now();
  }

 private:
  std::mutex mutex_;
  std::vector<RequestTimes> done_;
  Clock::time_point began_ = Clock::now();
  double cpu_before_ms_ = 0;
};

}  // namespace tie::bench
