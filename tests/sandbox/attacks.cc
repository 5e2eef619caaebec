#include "attacks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tie::attacks {
namespace {

pid_t pid_word(const Target& t) {
  return t.words.empty() ? 0 : static_cast<pid_t>(std::atoi(t.words[0].c_str()));
}

// --- other processes ---

std::string list_processes(const Target&) {
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return "";
  std::string found;
  while (dirent* entry = ::readdir(proc)) {
    int pid = std::atoi(entry->d_name);
    if (pid > 1 && pid != ::getpid() && found.size() < 100) found += std::string(entry->d_name) + " ";
  }
  ::closedir(proc);
  return found;
}

std::string read_memory_file(const Target& t) {
  os::Fd fd(::open(("/proc/" + std::to_string(pid_word(t)) + "/mem").c_str(), O_RDONLY));
  return fd ? "opened the memory of another process" : "";
}

std::string read_environment_of(const Target& t) {
  os::Fd fd(::open(("/proc/" + std::to_string(pid_word(t)) + "/environ").c_str(), O_RDONLY));
  char byte;
  return fd && ::read(fd.get(), &byte, 1) >= 0 ? "read the environment of another process" : "";
}

std::string read_memory_call(const Target& t) {
  char buffer[16];
  iovec local{buffer, sizeof buffer},
      remote{reinterpret_cast<void*>(std::strtoull(t.words.at(1).c_str(), nullptr, 16)), sizeof buffer};
  return ::process_vm_readv(pid_word(t), &local, 1, &remote, 1, 0) > 0 ? "read 16 bytes of another process" : "";
}

std::string trace(const Target& t) {
  if (::ptrace(PTRACE_SEIZE, pid_word(t), nullptr, nullptr) != 0) return "";
  ::ptrace(PTRACE_DETACH, pid_word(t), nullptr, nullptr);
  return "attached to another process";
}

std::string signal_another(const Target& t) {
  return ::kill(pid_word(t), 0) == 0 ? "can signal another process" : "";
}

std::string steal_descriptor(const Target& t) {
  long pidfd = ::syscall(SYS_pidfd_open, pid_word(t), 0);
  if (pidfd < 0) return "";
  return ::syscall(SYS_pidfd_getfd, pidfd, 2, 0) >= 0 ? "took a descriptor of another process" : "";
}

// --- files ---

std::string read_file(const Target& t) {
  os::Fd fd(::open(t.words.at(0).c_str(), O_RDONLY));
  char byte;
  return fd && ::read(fd.get(), &byte, 1) >= 0 ? "read " + t.words[0] : "";
}

std::string write_anywhere(const Target& t) {
  for (const std::string& folder : t.words) {
    std::string path = folder + "/attack-" + std::to_string(::getpid());
    os::Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
    if (fd && ::write(fd.get(), "x", 1) == 1) {
      ::unlink(path.c_str());
      return "wrote below " + folder;
    }
    if (::mkdir(path.c_str(), 0700) == 0) {
      ::rmdir(path.c_str());
      return "made a folder below " + folder;
    }
  }
  return "";
}

std::string overwrite_file(const Target& t) {
  os::Fd fd(::open(t.words.at(0).c_str(), O_WRONLY));
  return fd ? "opened for writing " + t.words[0] : "";
}

std::string mount_something(const Target& t) {
  return ::mount("none", t.words.at(0).c_str(), "tmpfs", 0, nullptr) == 0 &&
                 ::umount2(t.words[0].c_str(), MNT_DETACH) == 0
             ? "mounted"
             : "";
}

// In a child where one can be made, so that a success does not change the attacker itself.
std::string new_namespaces(const Target&) {
  pid_t pid = ::fork();
  if (pid < 0) return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? "made new namespaces" : "";
  if (pid == 0) ::_exit(::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? 42 : 1);
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42 ? "made new namespaces"
                                                                                             : "";
}

std::string list_mounts(const Target&) {
  os::Fd fd(::open("/proc/self/mountinfo", O_RDONLY));
  return fd ? "read the mount table" : "";
}

// --- sockets and network ---

std::string connect_unix_path(const Target& t) {
  for (const std::string& path : t.words) {
    os::Fd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    if (fd && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
      return "connected to " + path;
  }
  return "";
}

std::string connect_abstract(const Target& t) {
  os::Fd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, t.words.at(0).data(), t.words[0].size());
  auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + t.words[0].size());
  return fd && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 ? "connected to an abstract socket"
                                                                                     : "";
}

// Request processes share one empty network: a name in it would be a way from one request to another.
std::string be_reachable(const Target&) {
  os::Fd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "tie-attack-%d", static_cast<int>(::getpid()));
  auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(address.sun_path + 1));
  if (fd && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0) return "took a name on the network";
  os::Fd second(::socket(AF_UNIX, SOCK_STREAM, 0));
  return second && ::listen(second.get(), 1) == 0 ? "listens for others" : "";
}

std::string connect_tcp(const Target& t) {
  os::Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(t.words.at(0).c_str())));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return fd && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? "connected over TCP"
                                                                                               : "";
}

std::string send_udp(const Target& t) {
  os::Fd fd(::socket(AF_INET, SOCK_DGRAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::atoi(t.words.at(0).c_str())));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return fd && ::sendto(fd.get(), "x", 1, 0, reinterpret_cast<sockaddr*>(&address), sizeof address) == 1
             ? "sent a datagram"
             : "";
}

std::string netlink(const Target&) {
  os::Fd fd(::socket(AF_NETLINK, SOCK_RAW, 0));
  return fd ? "opened a netlink socket" : "";
}

std::string vsock(const Target&) {
  os::Fd fd(::socket(AF_VSOCK, SOCK_STREAM, 0));
  return fd ? "opened a vsock socket" : "";
}

// --- code ---

std::string start_program(const Target& t) {
  pid_t pid = ::fork();
  if (pid == 0) {
    char* words[] = {const_cast<char*>(t.words.at(0).c_str()), const_cast<char*>("--exit-42"), nullptr};
    char* none[] = {nullptr};
    ::execve(words[0], words, none);
    ::_exit(1);
  }
  int status = 0;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42
             ? "started a program"
             : "";
}

// In its own place, without a new process: the answer comes from the new program, see attacker.cc.
std::string replace_itself(const Target& t) {
  char* words[] = {const_cast<char*>(t.words.at(0).c_str()), const_cast<char*>("--answer-on-3"), nullptr};
  char* none[] = {nullptr};
  ::fcntl(3, F_SETFD, 0);
  ::execve(words[0], words, none);
  return "";
}

std::string run_memfd(const Target& t) {
  os::Fd program(::open(t.words.at(0).c_str(), O_RDONLY));
  int memfd = ::memfd_create("a", 0);
  if (!program || memfd < 0) return "";
  char buffer[65536];
  for (ssize_t n; (n = ::read(program.get(), buffer, sizeof buffer)) > 0;)
    if (::write(memfd, buffer, static_cast<size_t>(n)) != n) return "";
  char* words[] = {const_cast<char*>("a"), const_cast<char*>("--answer-on-3"), nullptr};
  char* none[] = {nullptr};
  ::fcntl(3, F_SETFD, 0);
  ::syscall(SYS_execveat, memfd, "", words, none, AT_EMPTY_PATH);
  return "";
}

std::string make_code(const Target&) {
  void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at != MAP_FAILED && ::mprotect(at, 4096, PROT_READ | PROT_EXEC) == 0 ? "made memory executable" : "";
}

std::string fork_itself(const Target&) {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  if (pid > 0) ::waitpid(pid, nullptr, 0);
  return pid > 0 ? "started a process" : "";
}

// --- kernel ---

std::string bpf(const Target&) {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = 4;
  attributes.value_size = 4;
  attributes.max_entries = 1;
  return ::syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes) >= 0 ? "made a BPF map" : "";
}

std::string io_uring(const Target&) {
  alignas(8) char parameters[120] = {};
  return ::syscall(SYS_io_uring_setup, 1, parameters) >= 0 ? "set up io_uring" : "";
}

std::string userfault(const Target&) {
  return ::syscall(SYS_userfaultfd, O_CLOEXEC) >= 0 ? "opened userfaultfd" : "";
}

std::string perf(const Target&) {
  perf_event_attr attributes{};
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.size = sizeof attributes;
  attributes.config = PERF_COUNT_SW_TASK_CLOCK;
  return ::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0) >= 0 ? "opened a perf event" : "";
}

std::string keyring(const Target&) {
  return ::syscall(SYS_keyctl, 0 /* GET_KEYRING_ID */, -3 /* session */, 1) >= 0 ? "reached a keyring" : "";
}

std::string capabilities(const Target&) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return "";
  return (data[0].effective | data[1].effective | data[0].permitted | data[1].permitted) != 0 ? "has capabilities" : "";
}

std::string shared_memory_segment(const Target& t) {
  int id = ::shmget(static_cast<key_t>(std::atoi(t.words.at(0).c_str())), 0, 0);
  return id >= 0 ? "found another's shared memory segment" : "";
}

std::string huge_allocation(const Target&) {
  constexpr size_t kBytes = size_t{64} << 30;
  void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return "";
  ::munmap(at, kBytes);
  return "reserved 64 GiB";
}

std::string many_descriptors(const Target&) {
  std::vector<os::Fd> held;
  for (int i = 0; i < 600; ++i) {
    os::Fd fd(::open("/dev/null", O_RDONLY));
    if (!fd) return "";
    held.push_back(std::move(fd));
  }
  return "opened 600 descriptors";
}

std::string truncate_shared(const Target& t) {
  if (t.fds.empty()) return "";
  return ::ftruncate(t.fds[0].get(), 0) == 0 ? "truncated shared memory" : "";
}

std::string map_shared_writable(const Target& t) {
  if (t.fds.empty()) return "";
  return ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, t.fds[0].get(), 0) != MAP_FAILED
             ? "mapped shared memory writable"
             : "";
}

}  // namespace

const std::map<std::string, Attack>& all() {
  static const std::map<std::string, Attack> table = {{"list_processes", list_processes},
                                                      {"read_memory_file", read_memory_file},
                                                      {"read_environment_of", read_environment_of},
                                                      {"read_memory_call", read_memory_call},
                                                      {"trace", trace},
                                                      {"signal_another", signal_another},
                                                      {"steal_descriptor", steal_descriptor},
                                                      {"read_file", read_file},
                                                      {"write_anywhere", write_anywhere},
                                                      {"overwrite_file", overwrite_file},
                                                      {"mount_something", mount_something},
                                                      {"new_namespaces", new_namespaces},
                                                      {"list_mounts", list_mounts},
                                                      {"connect_unix_path", connect_unix_path},
                                                      {"connect_abstract", connect_abstract},
                                                      {"be_reachable", be_reachable},
                                                      {"connect_tcp", connect_tcp},
                                                      {"send_udp", send_udp},
                                                      {"netlink", netlink},
                                                      {"vsock", vsock},
                                                      {"start_program", start_program},
                                                      {"replace_itself", replace_itself},
                                                      {"run_memfd", run_memfd},
                                                      {"make_code", make_code},
                                                      {"fork_itself", fork_itself},
                                                      {"bpf", bpf},
                                                      {"io_uring", io_uring},
                                                      {"userfault", userfault},
                                                      {"perf", perf},
                                                      {"keyring", keyring},
                                                      {"capabilities", capabilities},
                                                      {"shared_memory_segment", shared_memory_segment},
                                                      {"huge_allocation", huge_allocation},
                                                      {"many_descriptors", many_descriptors},
                                                      {"truncate_shared", truncate_shared},
                                                      {"map_shared_writable", map_shared_writable}};
  return table;
}

}  // namespace tie::attacks
