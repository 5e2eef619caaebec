// Cases of a device check, one after another in one process: each that is over is a line of JSON at once, so that a
// kernel that faults or never ends takes no other case's result with it; whoever started this starts it again for the
// cases that are left (tools/device_check.py). For device_check.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace tie::bones::cuda {

struct CheckCase {
  std::string name;
  // Fills in what it finds, "ok" among it. After an error, what it has found so far is told, too.
  std::function<Result<void>(nlohmann::json& found)> run;
};

// Runs them but for those named in `skip`; false: some case is not ok. Stops after the driver's error: nothing may work
// after it.
bool run_cases(const std::vector<CheckCase>& cases, const std::vector<std::string>& skip);

// One line: the names of all.
void list_cases(const std::vector<CheckCase>& cases);

}  // namespace tie::bones::cuda
