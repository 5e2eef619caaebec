#include "supervision/stateless_proof/node_search.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sstream>

#include "base/secret_bytes.h"
#include "os/fd.h"

namespace tie::proof {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62;
constexpr size_t kPagesPerLook = 4096;

os::Fd open_read(const std::string& path) {
  return os::Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
}

}  // namespace

// A line of /proc/PID/maps.
struct NodeSearch::Region {
  uint64_t begin = 0, end = 0;
  bool writable = false, shared = false;
  std::string file;  // "device:inode:offset", empty for anonymous memory
  std::string name;
  bool is_secret() const { return name.starts_with("/secretmem"); }
  // The kernel's own pages in every process: the same for all, and some cannot be read.
  bool is_kernels() const { return name.starts_with("[vvar") || name == "[vsyscall]"; }
};

const Find* SearchReport::find(std::string_view form, std::string_view owner) const {
  for (const Find& one : finds)
    if (one.form == form && (owner.empty() || one.owner == owner)) return &one;
  return nullptr;
}

Result<void> may_search(pid_t pid) {
  os::Fd memory = open_read(fmt::format("/proc/{}/mem", pid));
  if (memory) return {};
  if (errno == ENOENT || errno == ESRCH) return fail(Code::kNotFound, fmt::format("process {} has ended", pid));
  return fail(
      Code::kPermissionDenied,
      fmt::format("the kernel does not let this user read the memory of process {}: run it as root, outside of a "
                  "container that lacks CAP_SYS_PTRACE (docker: --cap-add SYS_PTRACE), with "
                  "kernel.yama.ptrace_scope below 3",
                  pid));
}

void NodeSearch::add_find(size_t form, const std::string& place, const std::string& owner) {
  const std::string& name = search_.forms()[form].name;
  for (Find& one : report_.finds)
    if (one.form == name && one.place == place) {
      ++one.times;
      return;
    }
  report_.finds.push_back({name, place, owner, 1});
}

uint64_t NodeSearch::search_range(int fd, uint64_t begin, uint64_t end, const std::string& place,
                                  const std::string& owner, bool& failed) {
  size_t overlap = search_.longest_pattern() - 1;
  buffer_.resize(kPieceBytes + overlap);
  uint64_t read = 0;
  size_t kept = 0;
  for (uint64_t at = begin; at < end;) {
    size_t wanted = static_cast<size_t>(std::min<uint64_t>(kPieceBytes, end - at));
    ssize_t n = ::pread(fd, buffer_.data() + kept, wanted, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed = true;
    if (n <= 0) break;
    at += static_cast<uint64_t>(n);
    read += static_cast<uint64_t>(n);
    ByteView piece(buffer_.data(), kept + static_cast<size_t>(n));
    search_.search(piece, [&](size_t form, size_t found_end) {
      if (found_end > kept) add_find(form, place, owner);  // else it was found with the piece before
    });
    kept = std::min(overlap, piece.size());
    std::copy(piece.end() - static_cast<ptrdiff_t>(kept), piece.end(), buffer_.begin());
  }
  secure_zero(buffer_.data(), std::min(buffer_.size(), kept + kPieceBytes));
  return read;
}

void NodeSearch::search_region(const NodeProcess& process, int memory, int pagemap, const Region& region) {
  std::string place = fmt::format("{} {}: memory of {}", process.name, process.pid,
                                  region.name.empty() ? "anonymous mapping" : region.name);
  bool failed = false;
  auto look = [&](uint64_t begin, uint64_t end) {
    report_.memory_bytes += search_range(memory, begin, end, place, process.name, failed);
  };
  if (region.shared) {
    // The page table of one process says nothing about pages that only another has touched.
    look(region.begin, region.end);
  } else {
    std::vector<uint64_t> entries(kPagesPerLook);
    uint64_t run = region.end;  // where a run of used pages began
    for (uint64_t page = region.begin; page < region.end;) {
      size_t pages = static_cast<size_t>(std::min<uint64_t>(kPagesPerLook, (region.end - page) / kPageBytes));
      ssize_t n = ::pread(pagemap, entries.data(), pages * 8, static_cast<off_t>(page / kPageBytes * 8));
      if (n <= 0) break;  // the process has ended
      for (size_t i = 0; i < static_cast<size_t>(n) / 8; ++i, page += kPageBytes) {
        bool used = (entries[i] & (kPresent | kSwapped)) != 0;
        if (used && run == region.end) run = page;
        if (used || run == region.end) continue;
        look(run, page);
        run = region.end;
      }
    }
    if (run != region.end) look(run, region.end);
  }
  if (failed && may_search(process.pid)) report_.unreadable.push_back(place);
}

void NodeSearch::search_process(const NodeProcess& process) {
  std::string folder = fmt::format("/proc/{}/", process.pid);
  os::Fd memory = open_read(folder + "mem"), pagemap = open_read(folder + "pagemap");
  auto maps = os::read_file(folder + "maps", size_t{64} << 20);
  if (!memory || !pagemap || !maps) {
    auto allowed = may_search(process.pid);
    if (allowed || allowed.error().code != Code::kNotFound)
      report_.unreadable.push_back(fmt::format("{} {}", process.name, process.pid));
    return;
  }
  ++report_.processes;
  search_descriptors(process);
  std::istringstream lines(to_string(*maps));
  for (std::string line; std::getline(lines, line);) {
    Region region;
    char rights[5] = {}, device[16] = {};
    unsigned long long begin = 0, end = 0, offset = 0, inode = 0;
    int name_at = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %4s %llx %15s %llu %n", &begin, &end, rights, &offset, device, &inode,
                    &name_at) < 6)
      continue;
    region.begin = begin, region.end = end;
    region.writable = rights[1] == 'w', region.shared = rights[3] == 's';
    region.name = line.substr(std::min<size_t>(static_cast<size_t>(name_at), line.size()));
    if (inode != 0) region.file = fmt::format("{}:{}:{}", device, inode, offset);
    if (region.is_secret()) report_.secret_pages += (end - begin) / kPageBytes;
    if (region.is_secret() || region.is_kernels()) continue;
    if (region.name.starts_with("/memfd:") && seen_.contains(fmt::format("memfd:{}", inode))) continue;
    // The same file's bytes in another process; written pages of a private mapping are that process's own.
    bool same_everywhere = !region.file.empty() && (region.shared || !region.writable);
    if (same_everywhere && !seen_.insert(fmt::format("{}:{}", region.file, end - begin)).second) continue;
    search_region(process, memory.get(), pagemap.get(), region);
  }
}

void NodeSearch::search_descriptors(const NodeProcess& process) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", process.pid), error)) {
    std::string target = fs::read_symlink(entry.path(), error);
    bool is_memfd = target.starts_with("/memfd:");
    if (!is_memfd && !target.ends_with(" (deleted)")) continue;
    search_file(entry.path(), fmt::format("{} {}: {}", process.name, process.pid, target), process.name, is_memfd);
  }
}

void NodeSearch::search_file(const std::string& path, const std::string& place, const std::string& owner,
                             bool is_memfd) {
  struct stat before{};
  // A path below /proc is a link that has to be followed; a folder's entries were checked to be regular files.
  if (::stat(path.c_str(), &before) != 0 || !S_ISREG(before.st_mode)) return;
  if (!seen_.insert(fmt::format("{}:{}", before.st_dev, before.st_ino)).second) return;
  if (is_memfd) seen_.insert(fmt::format("memfd:{}", before.st_ino));
  os::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno != ENOENT && errno != ESRCH) report_.unreadable.push_back(place);
    return;
  }
  bool failed = false;
  uint64_t bytes = 0, size = static_cast<uint64_t>(before.st_size);
  for (off_t data = 0; static_cast<uint64_t>(data) < size;) {
    data = ::lseek(file.get(), data, SEEK_DATA);
    if (data < 0) break;  // nothing but a hole is left
    off_t hole = ::lseek(file.get(), data, SEEK_HOLE);
    uint64_t end = hole < 0 ? size : static_cast<uint64_t>(hole);
    bytes += search_range(file.get(), static_cast<uint64_t>(data), end, place, owner, failed);
    data = static_cast<off_t>(end);
  }
  if (failed) report_.unreadable.push_back(place);
  (is_memfd ? report_.memfds : report_.files) += 1;
  (is_memfd ? report_.memfd_bytes : report_.file_bytes) += bytes;
}

void NodeSearch::search_folder(const std::string& folder) {
  std::error_code error;
  auto options = fs::directory_options::skip_permission_denied;
  for (auto entry = fs::recursive_directory_iterator(folder, options, error);
       entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (error) break;
    std::error_code ignored;
    if (entry->symlink_status(ignored).type() == fs::file_type::regular)
      search_file(entry->path(), "file " + entry->path().string(), "", false);
  }
}

}  // namespace tie::proof
