#include "base/clock.h"

#include <time.h>

namespace tie {
namespace {
int64_t read_us(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}
}  // namespace

int64_t monotonic_us() {
  return read_us(CLOCK_MONOTONIC);
}
int64_t monotonic_ms() {
  return monotonic_us() / 1000;
}
int64_t wall_clock_ms() {
  return read_us(CLOCK_REALTIME) / 1000;
}

}  // namespace tie
