#include "supervision/launcher/doctor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <sstream>

#include "os/process.h"
#include "os/sandbox.h"
#include "os/unix_socket.h"
#include "supervision/launcher/node_status.h"
#include "supervision/launcher/run_directory.h"
#include "supervision/launcher/trial.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

Finding ok(std::string name, std::string found) {
  return {std::move(name), Verdict::kOk, std::move(found), "", ""};
}

std::string text_of(const std::string& path) {
  auto bytes = os::read_file(path, 4 << 20);
  return bytes ? to_string(*bytes) : "";
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Whether `body` succeeds in a child, whose changes to itself vanish with it.
bool works_in_child(const std::function<bool()>& body) {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Finding user_namespaces() {
  constexpr int kFlags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
  if (works_in_child([] { return ::unshare(kFlags) == 0; })) return ok("user namespaces", "can be made");
  return {"user namespaces", Verdict::kBlocking, "the kernel refuses them",
          "processes cannot be separated from each other; `tie up` refuses without --insecure-no-sandbox",
          "sysctl -w user.max_user_namespaces=10000; on Debian kernels also kernel.unprivileged_userns_clone=1; on "
          "Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; "
          "in a container, start it with a seccomp profile that allows unshare"};
}

// Either launcher is enough; what neither can do blocks.
Finding sandbox() {
  std::string works, fails;
  for (auto* make : {&os::make_direct_launcher, &os::make_bubblewrap_launcher}) {
    const char* name = make == &os::make_direct_launcher ? "own launcher" : "bubblewrap";
    auto launcher = make();
    Result<void> tried = launcher ? try_sandbox(**launcher) : std::unexpected(launcher.error());
    std::string& list = tried ? works : fails;
    list += (list.empty() ? "" : "; ") + std::string(name) + (tried ? "" : ": " + tried.error().message);
  }
  if (!works.empty())
    return ok("sandbox", "a trial program ran confined, under the system call filter, by: " + works +
                             (fails.empty() ? "" : " (not by " + fails + ")"));
  return {"sandbox", Verdict::kBlocking, fails,
          "no process of the node can be confined; `tie up` refuses without --insecure-no-sandbox",
          "apt install bubblewrap; see `user namespaces`; in a container it must be allowed to mount"};
}

Finding seccomp() {
  uint32_t action = SECCOMP_RET_KILL_PROCESS;
  if (::syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0) return ok("seccomp", "filters available");
  return {"seccomp", Verdict::kBlocking, "the kernel has no system call filters",
          "a process that was taken over could use every system call", "use a kernel with CONFIG_SECCOMP_FILTER"};
}

Finding secret_memory() {
  long fd = ::syscall(447 /* memfd_secret */, 0);
  if (fd >= 0) {
    ::close(static_cast<int>(fd));
    return ok("memfd_secret", "available: binding keys lie in memory that the kernel itself does not map");
  }
  return {"memfd_secret", Verdict::kMissing, std::string("not available: ") + std::strerror(errno),
          "binding keys are kept in locked memory instead, which a kernel compromise can read",
          "kernel 5.14 or newer; before 6.5 boot with secretmem.enable=1"};
}

// Swap on dm-crypt or in compressed memory (zram) does not reach a disk in clear.
bool is_safe_swap(const std::string& device) {
  std::string name = fs::path(device).filename();
  if (name.starts_with("zram")) return true;
  std::error_code ignored;
  fs::path real = fs::canonical(device, ignored);
  return text_of("/sys/class/block/" + real.filename().string() + "/dm/uuid").starts_with("CRYPT-");
}

Finding swap() {
  std::istringstream lines(text_of("/proc/swaps"));
  std::string line, bad;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::string device = line.substr(0, line.find(' '));
    if (!device.empty() && !is_safe_swap(device)) bad += (bad.empty() ? "" : ", ") + device;
  }
  if (bad.empty()) return ok("swap", "none, or only encrypted or in memory");
  return {"swap", Verdict::kMissing, "unencrypted swap on " + bad,
          "prompts and answers in memory may be written to a disk in clear",
          "swapoff " + bad + ", or put it on dm-crypt with a random key"};
}

Finding locked_memory() {
  constexpr rlim_t kWanted = 1 << 20;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  bool enough = limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= kWanted;
  std::string found = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{} KiB", limit.rlim_cur >> 10);
  if (enough) return ok("locked memory", found);
  return {"locked memory", Verdict::kMissing, found, "keys may be swapped out",
          "raise `memlock` in /etc/security/limits.conf to at least 1024"};
}

Finding attestation() {
  std::string devices;
  for (const char* device : {"/dev/tdx_guest", "/dev/sev-guest", "/dev/tpmrm0"})
    if (exists(device)) devices += std::string(devices.empty() ? "" : ", ") + device;
  // Truthful whether or not a device is there: this release signs its evidence with a key made at boot.
  return {"attestation", Verdict::kMissing,
          devices.empty() ? "no TPM, TDX or SEV-SNP device" : devices + " present, but evidence is still software",
          "this node is UNATTESTED: its evidence is signed by a key made at boot, so a client believes the operator, "
          "not hardware",
          devices.empty() ? "run the node in a confidential VM, or on a machine with a TPM"
                          : "hardware evidence is not part of this release"};
}

Finding process_descriptors() {
  if (!os::pidfd_of_self())
    return {"pidfd", Verdict::kBlocking, "not available", "the node cannot follow its processes safely",
            "kernel 5.3 or newer"};
  auto pair = os::socket_pair();
  int fd = -1;
  socklen_t size = sizeof fd;
  constexpr int kSoPeerPidfd = 77;
  if (pair && ::getsockopt(pair->first.get(), SOL_SOCKET, kSoPeerPidfd, &fd, &size) == 0) {
    ::close(fd);
    return ok("pidfd", "with SO_PEERPIDFD");
  }
  return ok("pidfd", "without SO_PEERPIDFD (kernel 6.5): helpers pass their own, which is what the node uses");
}

Finding landlock() {
  constexpr int kVersionFlag = 1;
  long abi = ::syscall(444 /* landlock_create_ruleset */, nullptr, 0, kVersionFlag);
  if (abi > 0) return ok("landlock", fmt::format("ABI {} (not needed: mount namespaces separate files)", abi));
  return ok("landlock", "not available (not needed: mount namespaces separate files)");
}

// Programs, libraries and vocabularies are copied there; containers often have 64 MiB.
constexpr uint64_t kWantedRunBytes = 256 << 20;

Finding run_directory(const std::string& wanted) {
  constexpr const char* kMeaning = "sockets and state must not reach a disk";
  auto chosen = choose_run_directory(wanted);
  if (!chosen)
    return {"run directory", Verdict::kBlocking, chosen.error().message, kMeaning, "mount -t tmpfs tmpfs /run/tie"};
  if (!is_in_memory(*chosen))
    return {"run directory", Verdict::kBlocking, *chosen + " is on a disk", kMeaning,
            "name a folder on tmpfs with --run-dir"};
  struct statvfs space{};
  fs::path existing = *chosen;
  while (!exists(existing) && existing != existing.root_path()) existing = existing.parent_path();
  uint64_t free_bytes = ::statvfs(existing.c_str(), &space) == 0 ? uint64_t{space.f_bavail} * space.f_frsize : 0;
  if (free_bytes >= kWantedRunBytes || running_launcher(*chosen)) return ok("run directory", *chosen + ", in memory");
  return {"run directory", Verdict::kMissing,
          fmt::format("{}, in memory, but only {} MiB free", *chosen, free_bytes >> 20),
          "the node may not start: it keeps its programs there", "mount -o remount,size=1g " + existing.string()};
}

// What a node that runs now was told to do without.
Finding running_node(const std::string& wanted) {
  auto chosen = choose_run_directory(wanted);
  if (!chosen || !running_launcher(*chosen)) return ok("this node", "not running");
  auto status = read_node_status(*chosen);
  if (!status)
    return {"this node", Verdict::kMissing, "a launcher runs, but not what it was told: " + status.error().message,
            "whether its processes are isolated is not known", "wait until it has started; else tie down, then tie up"};
  bool open = !status->isolated, raw = status->raw_logs, driver = !status->gpu_driver_root.empty();
  if (!open && !raw && !driver) return ok("this node", "running, isolated");
  return {"this node", Verdict::kMissing,
          std::string("running") + (open ? ", NOT ISOLATED (--insecure-no-sandbox)" : "") +
              (raw ? ", with raw logs (--raw-logs)" : "") +
              (driver ? ", with the GPU driver in " + status->gpu_driver_root + " (gpu_driver_root)" : ""),
          open  ? "a process that is taken over can reach every request and every key"
          : raw ? "its logs may hold what users wrote"
                : "code of that folder computes with users' text, and the release id does not cover it",
          "tie down, then tie up without that option"};
}

Finding user() {
  if (::geteuid() != 0) return ok("user", fmt::format("running as uid {}", ::geteuid()));
  return {"user", Verdict::kMissing, "running as root",
          "the processes keep root's number inside their user namespaces, without its capabilities",
          "run the node as a user of its own; it needs no root"};
}

std::string cpu_flags() {
  std::istringstream lines(text_of("/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("flags") || line.starts_with("Features")) return line + " ";
  return "";
}

Finding instruction_sets() {
  std::string flags = cpu_flags(), found;
  for (const char* name :
       {"avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"})
    if (flags.find(" " + std::string(name) + " ") != std::string::npos)
      found += std::string(found.empty() ? "" : " ") + name;
  if (found.find("avx2") != std::string::npos) return ok("instruction sets", found);
  return {"instruction sets", Verdict::kMissing, found.empty() ? "none that the kernels use" : found,
          "the reference kernels run: answers are right, but slow", "a CPU with AVX2 or newer"};
}

Finding huge_pages() {
  std::string memory = text_of("/proc/meminfo");
  size_t at = memory.find("HugePages_Total:");
  long total = at == std::string::npos ? 0 : std::strtol(memory.c_str() + at + 16, nullptr, 10);
  if (total > 0) return ok("huge pages", fmt::format("{} reserved", total));
  return {"huge pages", Verdict::kMissing, "none reserved",
          "reading weights is up to a tenth slower (nothing about privacy)",
          "sysctl -w vm.nr_hugepages=N, 2 MiB each, for the weights' size"};
}

}  // namespace

std::vector<Finding> examine_machine(const std::string& run_dir) {
  return {
      user_namespaces(),  sandbox(),   seccomp(), run_directory(run_dir), process_descriptors(), running_node(run_dir),
      attestation(),      user(),      swap(),    secret_memory(),        locked_memory(),       landlock(),
      instruction_sets(), huge_pages()};
}

bool any(const std::vector<Finding>& findings, Verdict verdict) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == verdict; });
}

std::string findings_as_text(const std::vector<Finding>& findings) {
  constexpr const char* kMarks[] = {"ok      ", "MISSING ", "BLOCKING"};
  std::string out;
  for (const Finding& f : findings) {
    out += fmt::format("{}  {:<17} {}\n", kMarks[static_cast<int>(f.verdict)], f.name, f.found);
    if (!f.meaning.empty()) out += fmt::format("{:27} so: {}\n", "", f.meaning);
    if (!f.remedy.empty()) out += fmt::format("{:27} to get it: {}\n", "", f.remedy);
  }
  return out;
}

std::string findings_as_json(const std::vector<Finding>& findings) {
  constexpr const char* kWords[] = {"ok", "missing", "blocking"};
  auto quoted = [](const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      if (static_cast<unsigned char>(c) < 32) {
        out += fmt::format("\\u{:04x}", c);
      } else {
        out += c;
      }
    }
    return out + "\"";
  };
  std::string out = "{\"assurance\":\"unattested\",\"findings\":[";
  for (size_t i = 0; i < findings.size(); ++i) {
    const Finding& f = findings[i];
    out += fmt::format("{}{{\"name\":{},\"verdict\":\"{}\",\"found\":{},\"meaning\":{},\"remedy\":{}}}",
                       i == 0 ? "" : ",", quoted(f.name), kWords[static_cast<int>(f.verdict)], quoted(f.found),
                       quoted(f.meaning), quoted(f.remedy));
  }
  return out + "]}\n";
}

}  // namespace tie::launcher
