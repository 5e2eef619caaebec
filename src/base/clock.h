// Time as integers with their unit in the name. Monotonic for deadlines and expiry, wall clock only for display and
// wire timestamps.
#pragma once
#include <cstdint>

namespace tie {

int64_t monotonic_ms();
int64_t monotonic_us();
int64_t wall_clock_ms();  // since 1970-01-01 UTC

// A point in monotonic time by which a wait ends.
struct Deadline {
  int64_t at_ms = 0;
  static Deadline in_ms(int64_t ms) { return {monotonic_ms() + ms}; }
  int64_t remaining_ms() const {
    int64_t left = at_ms - monotonic_ms();
    return left > 0 ? left : 0;
  }
  bool passed() const { return monotonic_ms() >= at_ms; }
};

}  // namespace tie
