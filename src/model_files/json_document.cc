#include "model_files/json_document.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

namespace tie::model_files {
namespace {

// Watches the parser: remembers the names seen in each open object and the first rule that was broken.
class Watcher {
 public:
  explicit Watcher(int max_depth) : max_depth_(max_depth) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using enum nlohmann::json::parse_event_t;
    if (!problem_.empty()) return false;
    if (event == object_start) names_.emplace_back();
    if (event == object_end) names_.pop_back();
    if ((event == object_start || event == array_start) && depth >= max_depth_)
      problem_ = fmt::format("nests deeper than {}", max_depth_);
    if (event == key && !names_.back().insert(parsed.get<std::string>()).second)
      problem_ = fmt::format("names \"{}\" twice", parsed.get<std::string>().substr(0, 80));
    return problem_.empty();
  }
  const std::string& problem() const { return problem_; }

 private:
  int max_depth_;
  std::vector<std::set<std::string>> names_;
  std::string problem_;
};

}  // namespace

Result<nlohmann::json> parse_json_object(std::string_view text, const char* what, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return fail(Code::kTooLarge, fmt::format("{} has {} bytes, the limit is {}", what, text.size(), limits.max_bytes));
  const size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos || text[start] != '{' || text.find('\0') != std::string_view::npos)
    return fail(Code::kCorrupt, fmt::format("{} is not a JSON object", what));
  Watcher watcher(limits.max_depth);
  auto parsed = nlohmann::json::parse(text, std::ref(watcher), /*allow_exceptions=*/false);
  if (!watcher.problem().empty()) return fail(Code::kCorrupt, fmt::format("{} {}", what, watcher.problem()));
  if (parsed.is_discarded() || !parsed.is_object())
    return fail(Code::kCorrupt, fmt::format("{} is not valid JSON", what));
  return parsed;
}

}  // namespace tie::model_files
