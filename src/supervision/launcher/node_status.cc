#include "supervision/launcher/node_status.h"

#include <nlohmann/json.hpp>

#include "os/fd.h"
#include "supervision/launcher/run_directory.h"

namespace tie::launcher {
namespace {

constexpr size_t kMaxStatusBytes = 1 << 20;

// `out` of the member `name`, which has to be there and a truth value.
bool read_flag(const nlohmann::json& object, const char* name, bool& out) {
  auto member = object.find(name);
  if (member == object.end() || !member->is_boolean()) return false;
  out = member->get<bool>();
  return true;
}

}  // namespace

std::string node_status_path(const std::string& run) {
  return run + "/status.json";
}

Result<NodeStatusFile> parse_node_status(std::string document) {
  const auto damaged = [] {
    return fail(Code::kCorrupt, "the node's status document is not as the launcher writes it");
  };
  NodeStatusFile out;
  const auto parsed = nlohmann::json::parse(document, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return damaged();
  const auto node = parsed.find("node");
  if (node == parsed.end() || !node->is_object()) return damaged();
  const auto sandbox = node->find("sandbox");
  if (sandbox == node->end() || !sandbox->is_string()) return damaged();
  if (!read_flag(*node, "node_ready", out.node_ready) || !read_flag(parsed, "raw_logs", out.raw_logs) ||
      !read_flag(parsed, "models_fixed", out.models_fixed))
    return damaged();
  const auto driver = parsed.find("gpu_driver_root");
  if (driver == parsed.end() || !driver->is_string()) return damaged();
  out.gpu_driver_root = driver->get<std::string>();
  out.isolated = sandbox->get<std::string>() != "none";
  out.document = std::move(document);
  return out;
}

Result<NodeStatusFile> read_node_status(const std::string& run) {
  auto document = os::read_file(node_status_path(run), kMaxStatusBytes);
  if (!running_launcher(run) || (!document && document.error().code != Code::kTooLarge))
    return fail(Code::kNotReady, "no node is running in " + run + "; start one with: tie up");
  if (!document) return std::unexpected(std::move(document.error()));
  return parse_node_status(to_string(*document));
}

}  // namespace tie::launcher
