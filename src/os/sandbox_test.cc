#include "os/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>

#include "os/program_files.h"

namespace tie::os {
namespace {

bool has_sequence(const std::vector<std::string>& words, std::initializer_list<std::string> wanted) {
  return std::search(words.begin(), words.end(), wanted.begin(), wanted.end()) != words.end();
}

SandboxProfile sample() {
  SandboxProfile profile;
  profile.program = "/x/program";
  profile.arguments = {"--flag", "value"};
  profile.environment = {{"LANG", "C.UTF-8"}};
  profile.binds = {
      {.path = "/host/socket"}, {.path = "/host/state", .writable = true}, {.path = "/host/lib", .at = "/lib"}};
  return profile;
}

TEST(BubblewrapCommand, UnsharesEverythingAndBindsOnlyWhatIsNamed) {
  auto words = bubblewrap_command("/usr/bin/bwrap", sample(), 40, 41);
  for (const char* flag : {"--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
                           "--die-with-parent", "--as-pid-1", "--clearenv"})
    EXPECT_NE(std::find(words.begin(), words.end(), flag), words.end()) << flag;
  EXPECT_TRUE(has_sequence(words, {"--cap-drop", "ALL"}));
  EXPECT_TRUE(has_sequence(words, {"--ro-bind", "/host/socket", "/host/socket"}));
  EXPECT_TRUE(has_sequence(words, {"--bind", "/host/state", "/host/state"}));
  EXPECT_TRUE(has_sequence(words, {"--ro-bind", "/host/lib", "/lib"}));
  EXPECT_TRUE(has_sequence(words, {"--remount-ro", "/"}));
  EXPECT_TRUE(has_sequence(words, {"--seccomp", "40"}));
  EXPECT_TRUE(has_sequence(words, {"--", "/x/program", "--flag", "value"}));
  EXPECT_EQ(std::count_if(words.begin(), words.end(), [](const std::string& w) { return w.ends_with("bind"); }), 4);
  EXPECT_EQ(std::find(words.begin(), words.end(), "--proc"), words.end());
}

TEST(BubblewrapCommand, TheHostNetworkIsKeptOnlyWhenAskedFor) {
  SandboxProfile profile = sample();
  profile.host_network = true;
  auto words = bubblewrap_command("/usr/bin/bwrap", profile, -1, -1);
  EXPECT_EQ(std::find(words.begin(), words.end(), "--unshare-net"), words.end());
}

TEST(SeccompProgram, EveryPolicyFitsAndOnlyNoneIsEmpty) {
  for (SyscallPolicy policy :
       {SyscallPolicy::kPerRequest, SyscallPolicy::kDaemon, SyscallPolicy::kNetworkDaemon, SyscallPolicy::kContainer,
        SyscallPolicy::kGpuDaemon, SyscallPolicy::kGpuContainer, SyscallPolicy::kGpuRanksContainer}) {
    auto program = seccomp_program(policy);
    ASSERT_TRUE(program) << program.error().message;
    EXPECT_GT(program->size(), 50 * sizeof(sock_filter));
    EXPECT_LT(program->size(), BPF_MAXINSNS * sizeof(sock_filter));
    EXPECT_EQ(program->size() % sizeof(sock_filter), 0u);
  }
  EXPECT_TRUE(seccomp_program(SyscallPolicy::kNone)->empty());
}

#if defined(__x86_64__)
// What `run` makes of itself in a child under `policy`'s filter, from 0 to 254.
int run_under(SyscallPolicy policy, const std::function<int()>& run) {
  const auto filter = seccomp_program(policy);
  EXPECT_TRUE(filter);
  Bytes code = filter ? *filter : Bytes{};
  const sock_fprog program{static_cast<unsigned short>(code.size() / sizeof(sock_filter)),
                           reinterpret_cast<sock_filter*>(code.data())};
  const pid_t child = ::fork();
  if (child == 0) {
    if (policy != SyscallPolicy::kNone &&
        (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0))
      ::_exit(255);
    ::_exit(run());
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
}

// errno of a system call there; 0: it went well.
int call_under(SyscallPolicy policy, long number, long first, long second, long third = 0) {
  return run_under(policy, [&] { return ::syscall(number, first, second, third) == 0 ? 0 : errno; });
}

// The request for AMX's tile registers.
int tile_request(SyscallPolicy policy) {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return call_under(policy, SYS_arch_prctl, kRequestPermission, kTileData);
}

// The kernel's answer to a request that the pipe, file or whatever -1 is does not know is EBADF; the filter's ENOSYS.
TEST(SeccompProgram, OnlyProcessesWithAGpuMayAskItsDriver) {
  for (long request : {0xc020462aL, 0xc00846d6L, 0x1bL, 0x30000001L}) {
    for (SyscallPolicy policy :
         {SyscallPolicy::kPerRequest, SyscallPolicy::kDaemon, SyscallPolicy::kNetworkDaemon, SyscallPolicy::kContainer})
      EXPECT_EQ(call_under(policy, SYS_ioctl, -1, request), ENOSYS) << std::hex << request;
    for (SyscallPolicy policy : {SyscallPolicy::kGpuDaemon, SyscallPolicy::kGpuContainer})
      EXPECT_EQ(call_under(policy, SYS_ioctl, -1, request), EBADF) << std::hex << request;
  }
  constexpr long kPushByteToTerminal = 0x5412;  // TIOCSTI
  EXPECT_EQ(call_under(SyscallPolicy::kGpuContainer, SYS_ioctl, -1, kPushByteToTerminal), ENOSYS);
}

TEST(SeccompProgram, OnlyRanksOnGpusMayMeetOnTheirOwnNetwork) {
  for (SyscallPolicy policy : {SyscallPolicy::kPerRequest, SyscallPolicy::kDaemon, SyscallPolicy::kContainer,
                               SyscallPolicy::kGpuDaemon, SyscallPolicy::kGpuContainer})
    EXPECT_EQ(call_under(policy, SYS_socket, AF_INET, SOCK_STREAM), ENOSYS);
  // A descriptor, which call_under takes for an error: neither the filter's nor the kernel's refusal.
  EXPECT_NE(call_under(SyscallPolicy::kGpuRanksContainer, SYS_socket, AF_INET, SOCK_STREAM), ENOSYS);
  EXPECT_EQ(call_under(SyscallPolicy::kGpuRanksContainer, SYS_socket, AF_INET, SOCK_DGRAM), ENOSYS);
  EXPECT_EQ(call_under(SyscallPolicy::kGpuRanksContainer, SYS_socket, AF_INET, SOCK_STREAM, IPPROTO_SCTP), ENOSYS);
  EXPECT_EQ(call_under(SyscallPolicy::kGpuRanksContainer, SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER), ENOSYS);
  EXPECT_EQ(call_under(SyscallPolicy::kGpuRanksContainer, SYS_ioctl, -1, 0xc020462aL), EBADF);
}

// NCCL finds the interface that its ranks meet on by asking for all of them.
TEST(SeccompProgram, RanksOnGpusMayAskWhichInterfacesThereAre) {
  auto ask = [] {
    ifaddrs* all = nullptr;
    return ::getifaddrs(&all) == 0 && all != nullptr ? 0 : 1;
  };
  EXPECT_EQ(run_under(SyscallPolicy::kGpuRanksContainer, ask), 0);
  EXPECT_EQ(run_under(SyscallPolicy::kGpuContainer, ask), 1);
}

TEST(SeccompProgram, TheRuntimesFilterLeavesTheAnswerAboutTilesToTheKernel) {
  EXPECT_EQ(tile_request(SyscallPolicy::kContainer), tile_request(SyscallPolicy::kNone));
}
#endif

// Starts `sh -c SCRIPT` with /data bound to `data` and descriptor 3 a pipe; what it writes there, "exit N" when it ends
// with N, or the launcher's own error.
std::string said_by(SandboxLauncher& launcher, const std::string& script, const std::filesystem::path& data) {
  SandboxProfile profile;
  profile.program = "/bin/sh";
  profile.arguments = {"-c", script};
  auto needed = program_libraries(profile.program);
  if (!needed) return needed.error().message;
  needed->libraries.push_back(needed->loader);
  for (const std::string& file : needed->libraries) profile.binds.push_back({.path = file, .executable = true});
  profile.binds.push_back({.path = data.string(), .at = "/data"});
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
  Fd reader(ends[0]), writer(ends[1]);
  auto started = launcher.spawn(profile, {.passed = {writer.get()}});
  if (!started) return started.error().message;
  writer.close();
  std::string out;
  char buffer[256];
  for (ssize_t n; (n = ::read(reader.get(), buffer, sizeof buffer)) > 0;) out.append(buffer, static_cast<size_t>(n));
  int status = 0;
  while (::waitpid(started->monitor, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? out : "exit " + std::to_string(WEXITSTATUS(status));
}

// Its layout of a profile is kept: what changes from start to start must not be.
TEST(DirectLauncher, AProfileThatIsStartedAgainGetsItsOwnDescriptorsAndTodaysFiles) {
  auto launcher = make_direct_launcher();
  if (!launcher) GTEST_SKIP() << launcher.error().message;
  const auto folder = std::filesystem::temp_directory_path() / ("tie-sandbox-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "data");
  const std::string look = "if [ -d /data ]; then echo folder >&3; else echo file >&3; fi";
  EXPECT_EQ(said_by(**launcher, look, folder / "data"), "folder\n");
  EXPECT_EQ(said_by(**launcher, look, folder / "data"), "folder\n");
  std::filesystem::remove(folder / "data");
  EXPECT_NE(said_by(**launcher, look, folder / "data").find("data"), std::string::npos);  // the error names it
  std::ofstream(folder / "data") << "x";
  EXPECT_EQ(said_by(**launcher, look, folder / "data"), "file\n");
  // More profiles than are kept, in turns.
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 6; ++i) {
      const std::string word = std::to_string(i);
      EXPECT_EQ(said_by(**launcher, "echo " + word + " >&3", folder / "data"), word + "\n");
    }
  std::filesystem::remove_all(folder);
}

TEST(ProgramFiles, ListsLoaderAndLibrariesOfADynamicProgram) {
  auto needed = program_libraries(std::filesystem::read_symlink("/proc/self/exe"));
  ASSERT_TRUE(needed) << needed.error().message;
  EXPECT_NE(needed->loader.find("ld-linux"), std::string::npos);
  EXPECT_TRUE(std::any_of(needed->libraries.begin(), needed->libraries.end(),
                          [](const std::string& l) { return l.find("libc.so.6") != std::string::npos; }));
}

TEST(ProgramFiles, RefusesWhatIsNoProgram) {
  EXPECT_EQ(program_libraries("/etc/hostname").error().code, Code::kCorrupt);
  EXPECT_EQ(program_libraries("/nonexistent").error().code, Code::kNotFound);
  EXPECT_EQ(program_log_formats("/etc/passwd").error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace tie::os
