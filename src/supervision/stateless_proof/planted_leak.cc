#include "supervision/stateless_proof/planted_leak.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "os/memfd.h"

extern char** environ;

namespace tie::proof {
namespace {

constexpr int64_t kPlantMs = 10'000;
constexpr size_t kMaxLeakBytes = size_t{16} << 20;
constexpr const char* kPlantedMemfd = "planted-leak";
// As NodeSearch names places.
constexpr const char* kInMemory = "memory of";
constexpr const char* kInFile = "file ";

// Patterns one after another, a gap between them so that two never make a third.
Bytes laid_out(const std::vector<LeakForm>& forms) {
  Bytes out;
  for (const LeakForm& form : forms)
    for (const Bytes& pattern : form.patterns) {
      append(out, pattern);
      out.resize(out.size() + 64);
    }
  return out;
}

Result<pid_t> start(const std::vector<std::string>& command, int input, int output) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, 1);
  pid_t pid = 0;
  int error = ::posix_spawn(&pid, words[0], &actions, nullptr, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return fail_errno("starting the planted leak", error);
  return pid;
}

}  // namespace

PlantedLeak::PlantedLeak(PlantedLeak&& other) noexcept
    : process_(std::exchange(other.process_, {})),
      folder_(std::exchange(other.folder_, {})),
      input_(std::move(other.input_)) {}

PlantedLeak::~PlantedLeak() {
  if (process_.pid > 0) {
    ::kill(process_.pid, SIGKILL);
    while (::waitpid(process_.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

Result<PlantedLeak> PlantedLeak::plant(const std::vector<LeakForm>& forms, const std::vector<std::string>& command,
                                       const std::string& folder) {
  Bytes leak = laid_out(forms);
  if (leak.size() > kMaxLeakBytes) return fail(Code::kTooLarge, "too many patterns to plant");
  PlantedLeak out;
  if (::mkdir(folder.c_str(), 0700) != 0) return fail_errno("making " + folder, errno);
  out.folder_ = folder;
  TIE_CHECK_OK(os::write_file_atomic(folder + "/leak", leak));
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
  os::Fd input(to[0]);
  out.input_ = os::Fd(to[1]);
  if (::pipe2(from, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
  os::Fd said(from[0]), output(from[1]);
  TIE_TRY(out.process_.pid, start(command, input.get(), output.get()));
  out.process_.name = "planted leak";
  input.close();
  output.close();
  Bytes size;
  append_u32_be(size, static_cast<uint32_t>(leak.size()));
  Deadline deadline = Deadline::in_ms(kPlantMs);
  TIE_CHECK_OK(os::write_all(out.input_.get(), size, deadline));
  TIE_CHECK_OK(os::write_all(out.input_.get(), leak, deadline));
  uint8_t word = 0;
  TIE_CHECK_OK(os::read_exact(said.get(), {&word, 1}, deadline));
  return out;
}

int run_planted_leak() {
  uint8_t size[4];
  Deadline deadline = Deadline::in_ms(kPlantMs);
  if (!os::read_exact(0, size, deadline)) return 1;
  Bytes leak(std::min<size_t>(load_u32_be(size), kMaxLeakBytes));
  if (!os::read_exact(0, leak, deadline)) return 1;
  auto memfd = os::create_memfd(kPlantedMemfd, leak.size());
  if (!memfd || !os::write_all(memfd->get(), leak, deadline)) return 1;
  if (::write(1, ".", 1) != 1) return 1;
  char end;
  while (::read(0, &end, 1) > 0) {
  }
  return leak.empty() ? 1 : 0;  // used once more, so that no compiler lets go of it before
}

Result<std::vector<std::string>> silent_detectors(const LeakSearch& search, const std::vector<std::string>& command,
                                                  const std::string& folder) {
  TIE_TRY(PlantedLeak leak, PlantedLeak::plant(search.forms(), command, folder));
  NodeSearch looking(search);
  looking.search_process(leak.process());
  looking.search_folder(leak.folder());
  SearchReport report = looking.take_report();
  std::vector<std::string> silent;
  for (const LeakForm& form : search.forms())
    for (std::string_view where : {kInMemory, kPlantedMemfd, kInFile}) {
      bool heard = false;
      for (const Find& one : report.finds)
        heard = heard || (one.form == form.name && one.place.find(where) != std::string::npos &&
                          one.times >= form.patterns.size());
      if (!heard) silent.push_back(form.name + " in the planted " + std::string(where));
    }
  return silent;
}

}  // namespace tie::proof
