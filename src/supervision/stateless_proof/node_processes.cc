#include "supervision/stateless_proof/node_processes.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "base/bytes.h"
#include "os/fd.h"

namespace tie::proof {
namespace {

constexpr size_t kMaxProcFileBytes = size_t{1} << 20;

struct Row {
  pid_t parent = 0;
  std::string command_line;  // words, a zero byte after each
  bool of_node_user = false;
};

bool is_node_user(uid_t uid) {
  passwd entry{};
  passwd* found = nullptr;
  char buffer[4096];
  return ::getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr &&
         std::string_view(found->pw_name).starts_with("tie-");
}

pid_t parent_of(const std::string& folder) {
  auto stat = os::read_file(folder + "/stat", kMaxProcFileBytes);
  if (!stat) return 0;
  std::string text = to_string(*stat);
  size_t after_name = text.rfind(") ");  // "pid (name) state parent …"; a name may hold anything
  return after_name == std::string::npos || after_name + 4 > text.size() ? 0 : std::atoi(text.c_str() + after_name + 4);
}

std::map<pid_t, Row> all_processes() {
  std::map<pid_t, Row> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    auto words = os::read_file(entry.path().string() + "/cmdline", kMaxProcFileBytes);
    struct stat owner{};
    if (!words || ::stat(entry.path().c_str(), &owner) != 0) continue;
    out[std::atoi(name.c_str())] = {parent_of(entry.path()), to_string(*words), is_node_user(owner.st_uid)};
  }
  return out;
}

std::string program_name(const std::string& command_line, pid_t pid) {
  std::string program = command_line.substr(0, command_line.find('\0'));
  if (program.empty()) return "process " + std::to_string(pid);
  return program.substr(program.rfind('/') + 1);
}

}  // namespace

std::vector<NodeProcess> node_processes(const std::string& run, pid_t launcher) {
  std::map<pid_t, Row> rows = all_processes();
  std::set<pid_t> ours, above;
  for (pid_t pid = ::getpid(); pid > 0 && above.insert(pid).second;) pid = rows.contains(pid) ? rows[pid].parent : 0;
  for (const auto& [pid, row] : rows)
    if (pid == launcher || row.of_node_user || row.command_line.find(run + "/") != std::string::npos ||
        row.command_line.find(run + '\0') != std::string::npos)
      ours.insert(pid);
  // Children may have lower numbers than their parents: until nothing is added.
  for (size_t before = 0; before != ours.size();) {
    before = ours.size();
    for (const auto& [pid, row] : rows)
      if (ours.contains(row.parent) && !above.contains(row.parent)) ours.insert(pid);
  }
  std::vector<NodeProcess> out;
  for (pid_t pid : ours)
    if (!above.contains(pid)) out.push_back({pid, program_name(rows[pid].command_line, pid)});
  return out;
}

}  // namespace tie::proof
