#include "os/program_files.h"

#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "os/fd.h"
#include "os/memfd.h"

namespace tie::os {
namespace {

constexpr size_t kMaxListBytes = 256 * 1024;
constexpr int64_t kListTimeoutMs = 10'000;

// A mapped ELF64 file whose tables are checked against its size before use.
class Elf {
 public:
  static Result<Elf> open(const std::string& path) {
    Elf elf;
    TIE_TRY(elf.file_, Mapping::file_read_only(path));
    const auto* header = elf.at<Elf64_Ehdr>(0);
    if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_ident[EI_CLASS] != ELFCLASS64)
      return fail(Code::kCorrupt, path + " is not a 64-bit ELF program");
    elf.header_ = header;
    return elf;
  }

  // PT_INTERP, or empty.
  std::string interpreter() const {
    for (size_t i = 0; i < header_->e_phnum; ++i) {
      const auto* segment = at<Elf64_Phdr>(header_->e_phoff + i * sizeof(Elf64_Phdr));
      if (segment != nullptr && segment->p_type == PT_INTERP)
        return c_string(bytes(segment->p_offset, segment->p_filesz));
    }
    return {};
  }

  std::span<const std::byte> section(std::string_view name) const {
    const auto* names = section_header(header_->e_shstrndx);
    if (names == nullptr) return {};
    auto text = bytes(names->sh_offset, names->sh_size);
    for (size_t i = 0; i < header_->e_shnum; ++i) {
      const auto* s = section_header(i);
      if (s == nullptr || s->sh_name >= text.size() || s->sh_type == SHT_NOBITS) continue;
      if (c_string(text.subspan(s->sh_name)) == name) return bytes(s->sh_offset, s->sh_size);
    }
    return {};
  }

 private:
  template <typename T>
  const T* at(uint64_t offset) const {
    auto view = bytes(offset, sizeof(T));
    return view.empty() || offset % alignof(T) != 0 ? nullptr : reinterpret_cast<const T*>(view.data());
  }
  const Elf64_Shdr* section_header(size_t index) const {
    return at<Elf64_Shdr>(header_->e_shoff + index * sizeof(Elf64_Shdr));
  }
  std::span<const std::byte> bytes(uint64_t offset, uint64_t size) const {
    if (offset > file_.size() || size > file_.size() - offset) return {};
    return file_.bytes().subspan(offset, size);
  }
  static std::string c_string(std::span<const std::byte> view) {
    const char* text = reinterpret_cast<const char*>(view.data());
    return std::string(text, ::strnlen(text, view.size()));
  }

  Mapping file_;
  const Elf64_Ehdr* header_ = nullptr;
};

Result<std::string> output_of(const std::string& command, const std::vector<std::string>& arguments) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
  Fd reader(ends[0]), writer(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, writer.get(), STDERR_FILENO);
  std::vector<char*> words = {const_cast<char*>(command.c_str())};
  for (const std::string& a : arguments) words.push_back(const_cast<char*>(a.c_str()));
  words.push_back(nullptr);
  char* no_environment[] = {nullptr};
  pid_t pid = -1;
  int error = ::posix_spawn(&pid, command.c_str(), &actions, nullptr, words.data(), no_environment);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return fail_errno("running " + command, error);
  writer.close();
  std::string out;
  Deadline deadline = Deadline::in_ms(kListTimeoutMs);
  char buffer[8192];
  bool complete = false;
  while (out.size() < kMaxListBytes && wait_readable(reader.get(), deadline)) {
    ssize_t n = ::read(reader.get(), buffer, sizeof buffer);
    if (n <= 0) {
      complete = n == 0;
      break;
    }
    out.append(buffer, static_cast<size_t>(n));
  }
  if (!complete) ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (!complete || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(Code::kCorrupt, command + " failed: " + out.substr(0, 300));
  return out;
}

// Lines are "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)", "\t/lib64/ld-linux-x86-64.so.2 (0x...)" or "...
// => not found".
Result<std::vector<std::string>> parse_list(const std::string& text, const std::string& loader) {
  std::vector<std::string> out;
  for (size_t start = 0; start < text.size();) {
    size_t end = std::min(text.find('\n', start), text.size());
    std::string line = text.substr(start, end - start);
    start = end + 1;
    if (line.find("not found") != std::string::npos) return fail(Code::kCorrupt, "a shared library is missing:" + line);
    size_t arrow = line.find("=> ");
    size_t from = arrow == std::string::npos ? line.find('/') : arrow + 3;
    if (from == std::string::npos || from >= line.size() || line[from] != '/') continue;  // linux-vdso
    std::string path = line.substr(from, line.find(" (", from) - from);
    if (path != loader) out.push_back(path);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

Result<ProgramLibraries> program_libraries(const std::string& program) {
  TIE_TRY(Elf elf, Elf::open(program));
  ProgramLibraries out;
  out.loader = elf.interpreter();
  if (out.loader.empty()) return out;
  TIE_TRY(std::string list, output_of(out.loader, {"--list", program}));
  TIE_TRY(out.libraries, parse_list(list, out.loader));
  return out;
}

Result<std::vector<std::string>> program_log_formats(const std::string& program) {
  TIE_TRY(Elf elf, Elf::open(program));
  auto section = elf.section("tie_log");
  std::vector<std::string> out;
  const char* text = reinterpret_cast<const char*>(section.data());
  for (size_t at = 0; at < section.size();) {
    size_t length = ::strnlen(text + at, section.size() - at);
    if (length > 0) out.emplace_back(text + at, length);
    at += length + 1;
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace tie::os
