#include "supervision/launcher/run_directory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "os/unix_socket.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarker = "tie node run directory\n";
constexpr int kMaxAttempts = 64;
// The longest name below the run directory with a model name of 48 bytes, or a fixed socket twice.
constexpr size_t kLongestSocketName = 1 + 18 + 1 + 18 + 5;

std::string nearest_existing(const std::string& path) {
  fs::path at = path;
  std::error_code ignored;
  while (!at.empty() && at != at.root_path() && !fs::exists(at, ignored)) at = at.parent_path();
  return at.empty() ? "/" : at.string();
}

// A POSIX lock, because it can be asked who holds it; it falls with the process.
bool try_lock(int fd) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_SETLK, &lock) == 0;
}

Result<void> check_ours(const std::string& path) {
  struct stat st{};
  if (::lstat(path.c_str(), &st) != 0) return os::fail_path(path, errno);
  if (!S_ISDIR(st.st_mode)) return fail(Code::kPermissionDenied, path + " is not a folder");
  if (st.st_uid != ::geteuid()) return fail(Code::kPermissionDenied, path + " belongs to another user");
  if ((st.st_mode & 0022) != 0) return fail(Code::kPermissionDenied, path + " can be written by others");
  return {};
}

// A folder we may empty: it has nothing in it, or our marker.
Result<void> check_may_empty(const std::string& path) {
  auto marker = os::read_file(path + "/lock", 256);
  if (marker && as_text(*marker) == kMarker) return {};
  std::error_code ignored;
  size_t others = 0;
  for (const auto& entry : fs::directory_iterator(path, ignored)) others += entry.path().filename() != "lock";
  // A lock without words is one whose owner is just about to write them.
  if (others == 0 && (!marker || marker->empty())) return {};
  return fail(Code::kPermissionDenied, path + " holds files that are not a node's; choose another --run-dir");
}

// Makes the folder if need be and locks it. Nothing: the node that ended just now took folder or lock away meanwhile,
// and a lock on a file that nobody finds keeps nobody out.
Result<os::Fd> take_lock(const std::string& run) {
  if (::mkdir(run.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno("making " + run, errno);
  auto ours = check_ours(run);
  if (!ours && ours.error().code == Code::kNotFound) return os::Fd();
  TIE_CHECK_OK(ours);
  TIE_CHECK_OK(check_may_empty(run));
  ::chmod(run.c_str(), 0700);
  const std::string path = run + "/lock";
  os::Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock && errno == ENOENT) return os::Fd();  // the whole folder went
  if (!lock) return fail_errno("opening the lock of " + run, errno);
  if (!try_lock(lock.get()))
    return fail(Code::kAlreadyExists, "a node is running in " + run + "; stop it with: tie down");
  struct stat held{}, named{};
  if (::fstat(lock.get(), &held) != 0 || ::lstat(path.c_str(), &named) != 0 || held.st_ino != named.st_ino)
    return os::Fd();
  return lock;
}

void empty_but_lock(const std::string& path) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path, ignored))
    if (entry.path().filename() != "lock") fs::remove_all(entry.path(), ignored);
}

}  // namespace

bool is_in_memory(const std::string& path) {
  struct statfs st{};
  // What existed may be gone when it is asked: a node that ends removes its folder.
  for (int attempt = 0; ::statfs(nearest_existing(path).c_str(), &st) != 0; ++attempt)
    if (errno != ENOENT || attempt == kMaxAttempts) return false;
  return st.f_type == TMPFS_MAGIC || static_cast<unsigned long>(st.f_type) == RAMFS_MAGIC;
}

Result<std::string> choose_run_directory(const std::string& given) {
  const char* set = std::getenv("TIE_RUN");
  std::string wanted = given.empty() && set != nullptr ? set : given;
  if (!wanted.empty()) {
    if (wanted[0] != '/')
      return fail(Code::kBadRequest, "the run directory needs an absolute path, not '" + wanted + "'");
    return wanted;
  }
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR");
      runtime != nullptr && runtime[0] == '/' && is_in_memory(runtime))
    return std::string(runtime) + "/tie";
  if (::geteuid() == 0 && is_in_memory("/run")) return std::string("/run/tie");
  if (is_in_memory("/dev/shm")) return "/dev/shm/tie-" + std::to_string(::geteuid());
  return fail(Code::kNotReady,
              "found no folder in memory for the node (XDG_RUNTIME_DIR, /run, /dev/shm); mount a tmpfs and name it "
              "with --run-dir");
}

std::string socket_path(const std::string& run, const std::string& socket) {
  return run + "/" + socket + "/" + socket + ".sock";
}

std::string model_socket_path(const std::string& run, const std::string& kind, const std::string& model) {
  return run + "/" + kind + "/" + model + "/" + kind + ".sock";
}

Result<RunDirectory> RunDirectory::create(const std::string& path) {
  if (!is_in_memory(path))
    return fail(Code::kBadRequest, path + " is not in memory (tmpfs): what requests leave there would reach a disk");
  if (path.size() + kLongestSocketName > os::kMaxSocketPathBytes)
    return fail(Code::kBadRequest, path + " is too long: socket paths end at 107 bytes");
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  RunDirectory out;
  for (int attempt = 0; !out.lock_; ++attempt) {
    if (attempt == kMaxAttempts)
      return fail(Code::kAlreadyExists, path + " is being taken and let go by other nodes; try again");
    TIE_TRY(out.lock_, take_lock(path));
  }
  (void)!::pwrite(out.lock_.get(), kMarker.data(), kMarker.size(), 0);
  empty_but_lock(path);
  out.path_ = path;
  return out;
}

RunDirectory::~RunDirectory() {
  if (!lock_) return;
  empty_but_lock(path_);
  ::unlink((path_ + "/lock").c_str());
  ::rmdir(path_.c_str());
}

Result<void> RunDirectory::make_folder(const std::string& relative) {
  std::string full = path_ + "/" + relative;
  std::error_code error;
  fs::create_directories(full, error);
  if (error) return fail(Code::kIo, "making " + full + ": " + error.message());
  return {};
}

std::optional<pid_t> running_launcher(const std::string& run) {
  os::Fd fd(::open((run + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return std::nullopt;
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(fd.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return std::nullopt;
  return lock.l_pid;
}

Result<void> remove_stale_run_directory(const std::string& run) {
  std::error_code ignored;
  if (!fs::exists(run, ignored)) return {};
  TIE_TRY(RunDirectory taken, RunDirectory::create(run));
  return {};  // taking it empties it, letting go removes it
}

}  // namespace tie::launcher
