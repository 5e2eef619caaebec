// What one forward pass contained, for tests and tools. Ids, counts and positions only: no token, no text.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

namespace tie::engine {

struct StepRow {
  uint64_t request_id = 0;
  uint32_t sample = 0;
  uint32_t first_position = 0;
  uint32_t n_rows = 0;  // 1 for a decode without draft
  uint32_t n_draft = 0;
  bool decode = false;
};
using StepTrace = std::function<void(uint64_t step, std::span<const StepRow> rows)>;

}  // namespace tie::engine
