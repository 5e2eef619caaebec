#include "inference/bones/cuda/testing/check_cases.h"

#include <algorithm>
#include <cstdio>

namespace tie::bones::cuda {

using nlohmann::json;

bool run_cases(const std::vector<CheckCase>& cases, const std::vector<std::string>& skip) {
  bool all = true;
  for (const CheckCase& one : cases) {
    if (std::find(skip.begin(), skip.end(), one.name) != skip.end()) continue;
    json found{{"case", one.name}, {"ok", false}};
    const auto ran = one.run(found);
    if (!ran) found["ok"] = false, found["error"] = ran.error().message;
    all = all && found["ok"].get<bool>();
    std::printf("%s\n", found.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
    std::fflush(stdout);
    if (!ran && ran.error().code == Code::kIo) break;
  }
  return all;
}

void list_cases(const std::vector<CheckCase>& cases) {
  json names = json::array();
  for (const CheckCase& one : cases) names.push_back(one.name);
  std::printf("%s\n", json{{"names", names}}.dump().c_str());
}

}  // namespace tie::bones::cuda
