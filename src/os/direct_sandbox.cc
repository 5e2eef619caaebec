// Our own sandbox launcher: one clone into all namespaces, a root of named mounts, no capabilities, the filter, exec.
// It builds what bubblewrap builds for the same profile (the compromise harness runs under both) at about a quarter of
// the cost, and adds noexec on everything but programs and libraries. Source: docs/decisions/own-sandbox-launcher.md.
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <thread>

#include "os/sandbox.h"
#include "os/spawn_plan.h"

namespace tie::os {
namespace {

constexpr uint64_t kNamespaces =
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
constexpr const char* kStagingPoint =
    "/tmp";  // any folder of the host: the new root is mounted there, in the child's own namespace only
constexpr int kLastCapability = 63;
constexpr size_t kMaxKeptPlans = 4;

int open_tree(const char* path) {
  return static_cast<int>(::syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE));
}
long move_mount(int mount, const char* target) {
  return ::syscall(SYS_move_mount, mount, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH);
}
long set_mount_flags(int fd, const char* path, unsigned flags, uint64_t attributes) {
  mount_attr attribute{};
  attribute.attr_set = attributes;
  return ::syscall(SYS_mount_setattr, fd, path, flags, &attribute, sizeof attribute);
}

// One mount of the new root, laid out before the clone so that the child needs no memory of its own.
struct PlannedMount {
  std::string source;
  std::string target;                // below the staging point
  std::vector<std::string> folders;  // to be made for it, outermost first
  uint64_t attributes = 0;
  bool is_folder = true;
  int tree = -1;  // in the child
};

struct DirectPlan {
  SpawnPlan spawn;
  std::vector<PlannedMount> mounts;
  std::vector<std::vector<std::string>> tmpfs;  // folders to make; the last is the mount point
  bool proc = false, loopback = false;
  std::string uid_map, gid_map;
  sock_fprog filter{};
  int life = -1;  // reading end of a pipe that only the launcher holds open for writing
};

std::vector<std::string> folders_to(const std::string& path) {
  std::vector<std::string> out;
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    out.push_back(kStagingPoint + path.substr(0, slash));
  return out;
}

Result<bool> is_folder(const std::string& path) {
  struct stat st{};
  if (::stat(path.c_str(), &st) != 0) return fail_errno("sandbox: " + path, errno);
  return S_ISDIR(st.st_mode);
}

Result<PlannedMount> plan_mount(const Bind& bind) {
  PlannedMount out;
  TIE_TRY(out.is_folder, is_folder(bind.path));
  const std::string& at = bind.at.empty() ? bind.path : bind.at;
  out.source = bind.path;
  out.target = kStagingPoint + at;
  out.folders = folders_to(at);
  out.attributes = MOUNT_ATTR_NOSUID | (bind.device ? 0 : MOUNT_ATTR_NODEV) |
                   (bind.executable ? 0 : MOUNT_ATTR_NOEXEC) | (bind.writable ? 0 : MOUNT_ATTR_RDONLY);
  return out;
}

// ---- in the child ----

void write_file(const char* path, const char* text, size_t size) {
  int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || ::write(fd, text, size) != static_cast<ssize_t>(size)) child_fails(path);
  ::close(fd);
}

void become_mapped_user(const DirectPlan& plan) {
  // The launcher is not dumpable, and the files below belong to root as long as that holds for its copy; exec and
  // harden_process set it anew.
  ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  write_file("/proc/self/setgroups", "deny", 4);
  write_file("/proc/self/uid_map", plan.uid_map.data(), plan.uid_map.size());
  write_file("/proc/self/gid_map", plan.gid_map.data(), plan.gid_map.size());
}

void make_folders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) child_fails("making a folder of the root");
}

void place_mount(const PlannedMount& mount) {
  make_folders(mount.folders);
  if (mount.is_folder) {
    if (::mkdir(mount.target.c_str(), 0755) != 0 && errno != EEXIST) child_fails("making a mount point");
  } else {
    int fd = ::open(mount.target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
    if (fd < 0) child_fails("making a mount point");
    ::close(fd);
  }
  if (set_mount_flags(mount.tree, "", AT_EMPTY_PATH | AT_RECURSIVE, mount.attributes) != 0)
    child_fails("restricting a mount");
  if (move_mount(mount.tree, mount.target.c_str()) != 0) child_fails("mounting");
  ::close(mount.tree);
}

// The parts of /proc that reach beyond the pid namespace are made read-only: root's number outside, which files there
// belong to, may be ours.
void mount_proc() {
  if (::mkdir("/tmp/proc", 0755) != 0 && errno != EEXIST) child_fails("making /proc");
  if (::mount("proc", "/tmp/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
    child_fails("mounting /proc");
  for (const char* part : {"/tmp/proc/sys", "/tmp/proc/sysrq-trigger", "/tmp/proc/irq", "/tmp/proc/bus"}) {
    int tree = open_tree(part);
    if (tree < 0) continue;
    if (set_mount_flags(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, MOUNT_ATTR_RDONLY) != 0 || move_mount(tree, part) != 0)
      child_fails("restricting /proc");
    ::close(tree);
  }
}

void build_root(DirectPlan& plan) {
  if (::mount(nullptr, "/", nullptr, MS_SLAVE | MS_REC, nullptr) != 0) child_fails("detaching the mounts");
  // Sources first: the new root may hide where they are.
  for (PlannedMount& mount : plan.mounts)
    if ((mount.tree = open_tree(mount.source.c_str())) < 0) child_fails("opening a mount's source");
  if (::mount("tmpfs", kStagingPoint, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=1m") != 0)
    child_fails("mounting the root");
  if (plan.proc) mount_proc();
  for (const auto& folders : plan.tmpfs) {
    make_folders(folders);
    if (::mount("tmpfs", folders.back().c_str(), "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700") != 0)
      child_fails("mounting a tmpfs");
  }
  for (const PlannedMount& mount : plan.mounts) place_mount(mount);
  if (::chdir(kStagingPoint) != 0 || ::syscall(SYS_pivot_root, ".", ".") != 0 || ::umount2(".", MNT_DETACH) != 0 ||
      ::chdir("/") != 0)
    child_fails("changing the root");
  if (set_mount_flags(AT_FDCWD, "/", 0, MOUNT_ATTR_RDONLY) != 0) child_fails("making the root read-only");
}

// As bubblewrap does for every network of its own; here only where something listens on it.
void bring_up_loopback() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq lo{};
  std::strncpy(lo.ifr_name, "lo", sizeof lo.ifr_name - 1);
  lo.ifr_flags = IFF_UP | IFF_RUNNING;
  if (socket < 0 || ::ioctl(socket, SIOCSIFFLAGS, &lo) != 0) child_fails("bringing up the sandbox's own network");
  ::close(socket);
}

void drop_capabilities() {
  for (int capability = 0; capability <= kLastCapability; ++capability)
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno == EINVAL) break;  // beyond the kernel's last
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (::syscall(SYS_capset, &header, none) != 0) child_fails("dropping capabilities");
}

// The parent's number cannot be compared from inside a new pid namespace, so its life is read off a pipe.
void die_with_parent(int life) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) child_fails("PR_SET_PDEATHSIG");
  pollfd p{life, POLLIN, 0};
  if (::poll(&p, 1, 0) > 0) ::_exit(kSetupFailedExit);
}

[[noreturn]] void run_child(DirectPlan& plan, char* const* words, char* const* environment) {
  die_with_parent(plan.life);
  arrange_descriptors(plan.spawn);
  become_mapped_user(plan);
  ::setsid();
  reset_signals();
  ::umask(0022);
  build_root(plan);
  (void)!::sethostname("tie", 3);
  ::umask(0077);
  apply_limits(plan.spawn.limits);
  if (plan.loopback) bring_up_loopback();
  drop_capabilities();
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) child_fails("PR_SET_NO_NEW_PRIVS");
  if (plan.filter.len > 0 && ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &plan.filter) != 0)
    child_fails("installing the filter");
  ::execve(words[0], words, environment);
  child_fails("starting the program");
}

// ---- in the launcher ----

// An empty network namespace made on a thread of its own, so that the launcher keeps its own; nothing where that is not
// allowed.
Fd make_empty_network() {
  Fd made;
  std::thread([&made] {
    if (::unshare(CLONE_NEWNET) == 0) made = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  }).join();
  return made;
}

// While it lives, what this thread clones is born in the shared empty network. Making and clearing away a network
// namespace costs two and a half milliseconds of CPU time for a request's pair. Only for programs whose filter knows
// neither bind nor listen: what has no name and takes no connection cannot be reached over a network that others are
// in.
class InSharedNetwork {
 public:
  InSharedNetwork(int shared, int own) : own_(own), entered_(shared >= 0 && ::setns(shared, CLONE_NEWNET) == 0) {}
  ~InSharedNetwork() {
    if (entered_) tie_check(::setns(own_, CLONE_NEWNET) == 0, "the launcher comes back to its own network");
  }
  InSharedNetwork(const InSharedNetwork&) = delete;
  InSharedNetwork& operator=(const InSharedNetwork&) = delete;
  bool entered() const { return entered_; }

 private:
  const int own_;
  const bool entered_;
};

class DirectLauncher final : public SandboxLauncher {
 public:
  explicit DirectLauncher(Fd life_reader, Fd life_writer)
      : life_reader_(std::move(life_reader)),
        life_writer_(std::move(life_writer)),
        own_network_(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
    if (own_network_) empty_network_ = make_empty_network();
  }
  const char* name() const override { return "direct"; }

  Result<SandboxedProcess> spawn(const SandboxProfile& profile, const SpawnDescriptors& descriptors) override {
    TIE_TRY(Kept * kept, prepared(profile, descriptors));
    bool may_share = profile.syscalls == SyscallPolicy::kPerRequest && !profile.host_network;
    InSharedNetwork network(may_share ? empty_network_.get() : -1, own_network_.get());
    uint64_t flags = kNamespaces | (profile.host_network || network.entered() ? 0 : CLONE_NEWNET) | SIGCHLD;
    // As fork, but into new namespaces: no shared memory, so the child may use what was laid out here.
    long pid = ::syscall(SYS_clone, flags, nullptr, nullptr, nullptr, nullptr);
    if (pid < 0) return fail_errno("starting a sandbox", errno);
    if (pid == 0) {
      ::close(life_writer_.get());
      run_child(kept->plan, kept->words.data(), kept->environment.data());
    }
    auto child = static_cast<pid_t>(pid);
    return SandboxedProcess{child, child, Fd()};
  }

 private:
  // What was laid out for a profile stays for the next process of it: a request's two are started again and again, and
  // memory that is given back while the child still has it has to be copied first.
  struct Kept {
    SandboxProfile profile;
    DirectPlan plan;
    std::vector<char*> words, environment;
  };

  Result<Kept*> prepared(const SandboxProfile& profile, const SpawnDescriptors& descriptors) {
    auto known = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.profile == profile; });
    if (known == kept_.end()) {
      TIE_TRY(DirectPlan plan, plan_all(profile, descriptors));
      if (kept_.size() == kMaxKeptPlans) kept_.pop_back();
      Kept& made = kept_.emplace_front(Kept{profile, std::move(plan), {}, {}});
      made.words = pointers(made.plan.spawn.words);
      made.environment = pointers(made.plan.spawn.environment);
      return &made;
    }
    kept_.splice(kept_.begin(), kept_, known);
    TIE_TRY(SpawnPlan now, plan_for(profile, descriptors));
    known->plan.spawn.descriptors = std::move(now.descriptors);
    known->plan.spawn.standard_error = now.standard_error;
    for (PlannedMount& mount : known->plan.mounts) {
      TIE_TRY(mount.is_folder, is_folder(mount.source));
    }
    return &*known;
  }

  Result<DirectPlan> plan_all(const SandboxProfile& profile, const SpawnDescriptors& descriptors) {
    DirectPlan plan;
    TIE_TRY(plan.spawn, plan_for(profile, descriptors));
    plan.spawn.words = {profile.program};
    plan.spawn.words.insert(plan.spawn.words.end(), profile.arguments.begin(), profile.arguments.end());
    for (const auto& [name, value] : profile.environment) plan.spawn.environment.push_back(name + "=" + value);
    for (const std::string& folder : profile.tmpfs) {
      plan.tmpfs.push_back(folders_to(folder));
      plan.tmpfs.back().push_back(kStagingPoint + folder);
    }
    for (const Bind& bind : profile.binds) TIE_CHECK_OK(add_mount(plan, bind));
    TIE_CHECK_OK(add_mount(plan, {.path = profile.program, .executable = true}));
    plan.proc = profile.proc;
    plan.loopback = profile.syscalls == SyscallPolicy::kGpuRanksContainer;
    plan.uid_map = "1000 " + std::to_string(::geteuid()) + " 1";
    plan.gid_map = "1000 " + std::to_string(::getegid()) + " 1";
    plan.life = life_reader_.get();
    TIE_TRY(const Bytes* program, filter(profile.syscalls));
    plan.filter = {static_cast<unsigned short>(program->size() / sizeof(sock_filter)),
                   reinterpret_cast<sock_filter*>(const_cast<uint8_t*>(program->data()))};
    return plan;
  }

  static Result<void> add_mount(DirectPlan& plan, const Bind& bind) {
    TIE_TRY(PlannedMount mount, plan_mount(bind));
    plan.mounts.push_back(std::move(mount));
    return {};
  }

  Result<const Bytes*> filter(SyscallPolicy policy) {
    auto known = filters_.find(policy);
    if (known == filters_.end()) {
      TIE_TRY(Bytes program, seccomp_program(policy));
      known = filters_.emplace(policy, std::move(program)).first;
      // What building it took is given back: every process that is started copies a mapping of each page kept here.
      ::malloc_trim(0);
    }
    return &known->second;
  }

  Fd life_reader_, life_writer_;
  Fd own_network_, empty_network_;  // the second invalid where the launcher may not make one: each gets its own
  std::map<SyscallPolicy, Bytes> filters_;
  std::list<Kept> kept_;  // the last used first
};

}  // namespace

Result<std::unique_ptr<SandboxLauncher>> make_direct_launcher() {
  // An empty change of nothing: tells whether the call exists.
  if (set_mount_flags(-1, "", AT_EMPTY_PATH, 0) != 0 && errno == ENOSYS)
    return fail(Code::kNotReady, "the kernel lacks mount_setattr (Linux 5.12)");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
  return std::make_unique<DirectLauncher>(Fd(ends[0]), Fd(ends[1]));
}

}  // namespace tie::os
