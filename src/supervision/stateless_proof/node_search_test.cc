// Each detector against a leak of its form, planted in another process's memory, in a memfd and in a file.
#include "supervision/stateless_proof/node_search.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "supervision/stateless_proof/planted_leak.h"

namespace tie::proof {
namespace {

constexpr const char* kPlantVariable = "TIE_TEST_PLANTED_LEAK";
// The test program is the planted leak as well, when it is started so.
const int planted = [] {
  if (std::getenv(kPlantVariable) != nullptr) ::_exit(run_planted_leak());
  return 0;
}();

struct NodeSearchTest : ::testing::Test {
  std::string folder = (std::filesystem::temp_directory_path() / ("tie-leak-" + random_hex(6))).string();
  std::vector<LeakForm> forms;
  NodeSearchTest() {
    forms = text_forms({"k" + random_hex(8) + "\"\xc3\xb6" + random_hex(8), "w" + random_hex(8) + "\"\xc3\xa4x"});
    std::vector<int32_t> ids;
    for (int i = 0; i < 24; ++i) ids.push_back(static_cast<int32_t>(random_u64() % 49152));
    for (LeakForm& form : token_forms(ids)) forms.push_back(std::move(form));
    forms.push_back(key_form("DEK", {random(32)}));
    forms.push_back(key_form("turn key", {random(32)}));
    forms.push_back(row_form("K rows", {random(32), random(32)}));
  }
  ~NodeSearchTest() override { std::filesystem::remove_all(folder); }
  static Bytes random(size_t size) {
    Bytes out(size);
    random_bytes(out);
    return out;
  }
  LeakSearch search() const {
    auto made = LeakSearch::create(forms);
    tie_check(made.has_value(), "the forms make a search");
    return std::move(*made);
  }
};

// A child that has done `work` and waits to be ended. The parent's own copies of what it looks for are wiped in it.
struct Child {
  pid_t pid;
  template <typename Work>
  explicit Child(Work work) {
    int ready[2];
    tie_check(::pipe(ready) == 0, "a pipe");
    pid = ::fork();
    if (pid == 0) {
      work();
      (void)!::write(ready[1], ".", 1);
      for (;;) ::pause();
    }
    char word;
    (void)!::read(ready[0], &word, 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Child() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

TEST_F(NodeSearchTest, EveryDetectorFindsItsPlantedLeakInMemoryInAMemfdAndInAFile) {
  LeakSearch searching = search();
  ::setenv(kPlantVariable, "1", 1);
  auto silent = silent_detectors(searching, {"/proc/self/exe"}, folder);
  ::unsetenv(kPlantVariable);
  ASSERT_TRUE(silent) << silent.error().message;
  EXPECT_TRUE(silent->empty()) << silent->front();
  EXPECT_FALSE(std::filesystem::exists(folder)) << "the planted leak is gone";
}

TEST_F(NodeSearchTest, ADetectorWithoutItsLeakIsSilent) {
  // Planted is everything but the last form, which must then be reported as silent in all three places.
  ::setenv(kPlantVariable, "1", 1);
  std::vector<LeakForm> but_one(forms.begin(), forms.end() - 1);
  auto leak = PlantedLeak::plant(but_one, {"/proc/self/exe"}, folder);
  ::unsetenv(kPlantVariable);
  ASSERT_TRUE(leak) << leak.error().message;
  LeakSearch searching = search();
  NodeSearch looking(searching);
  looking.search_process(leak->process());
  looking.search_folder(leak->folder());
  SearchReport report = looking.take_report();
  EXPECT_EQ(report.find("K rows"), nullptr);
  for (const LeakForm& form : but_one) EXPECT_NE(report.find(form.name), nullptr) << form.name;
  EXPECT_TRUE(report.unreadable.empty());
  EXPECT_EQ(report.processes, 1u);
  EXPECT_EQ(report.memfds, 1u);
  EXPECT_EQ(report.files, 1u);
}

TEST_F(NodeSearchTest, SharedMemoryThatTheProcessHasNotTouchedIsSearchedToo) {
  const Bytes secret = forms.back().patterns[0];
  void* shared = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Child child([] {});
  std::memcpy(static_cast<char*>(shared) + 70'000, secret.data(), secret.size());
  LeakSearch searching = search();
  NodeSearch looking(searching);
  looking.search_process({child.pid, "child"});
  bool found = false;
  for (const Find& one : looking.take_report().finds) found = found || one.place.find("/dev/zero") != std::string::npos;
  EXPECT_TRUE(found);
  ::munmap(shared, 1 << 20);
}

TEST_F(NodeSearchTest, ALeakAcrossTwoPiecesAndInADeletedFileIsFound) {
  std::filesystem::create_directories(folder);
  const Bytes secret = forms.back().patterns[0];
  std::string contents((size_t{4} << 20) - secret.size() / 2, 'x');
  contents += to_string(secret);
  contents.append(100'000, 'y');
  std::ofstream(folder + "/file", std::ios::binary) << contents;
  LeakSearch searching = search();
  NodeSearch looking(searching);
  looking.search_folder(folder);
  SearchReport report = looking.take_report();
  ASSERT_EQ(report.finds.size(), 1u);
  EXPECT_EQ(report.finds[0].times, 1u) << "counted once, though the pieces overlap";
  EXPECT_EQ(report.file_bytes, contents.size());

  int fd = ::open((folder + "/file").c_str(), O_RDONLY);
  std::filesystem::remove(folder + "/file");
  Child child([] {});
  NodeSearch again(searching);
  again.search_process({child.pid, "child"});
  bool found = false;
  for (const Find& one : again.take_report().finds) found = found || one.place.find("(deleted)") != std::string::npos;
  EXPECT_TRUE(found);
  ::close(fd);
}

TEST_F(NodeSearchTest, AProcessThatHasEndedIsNoHole) {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  LeakSearch searching = search();
  NodeSearch looking(searching);
  looking.search_process({pid, "gone"});
  SearchReport report = looking.take_report();
  EXPECT_EQ(report.processes, 0u);
  EXPECT_TRUE(report.unreadable.empty());
  EXPECT_EQ(may_search(pid).error().code, Code::kNotFound);
}

TEST(NodeProcesses, AreThoseThatNameTheRunDirectoryAndTheirChildrenButNeverTheSearcher) {
  std::string run = "/tmp/tie-no-such-run-" + random_hex(6);
  Child named([&] {
    std::string script = "sleep 100 & echo > /dev/null; : " + run + "/x; wait";
    if (::fork() == 0) ::execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    ::usleep(300'000);
  });
  auto found = node_processes(run, 0);
  size_t shells = 0, sleeps = 0;
  for (const NodeProcess& process : found) {
    shells += process.name == "sh";
    sleeps += process.name == "sleep";
    EXPECT_NE(process.pid, ::getpid());
    EXPECT_NE(process.pid, ::getppid());
  }
  EXPECT_EQ(shells, 1u);
  EXPECT_EQ(sleeps, 1u);
  for (const NodeProcess& process : found) ::kill(process.pid, SIGKILL);
}

}  // namespace
}  // namespace tie::proof
