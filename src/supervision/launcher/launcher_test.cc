#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "os/fd.h"
#include "os/unix_socket.h"
#include "supervision/launcher/doctor.h"
#include "supervision/launcher/edges.h"
#include "supervision/launcher/log_file.h"
#include "supervision/launcher/node_config.h"
#include "supervision/launcher/node_runner.h"
#include "supervision/launcher/node_status.h"
#include "supervision/launcher/port_check.h"
#include "supervision/launcher/release_manifest.h"
#include "supervision/launcher/run_directory.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

class Folder : public ::testing::Test {
 protected:
  explicit Folder(const char* parent = "/tmp") {
    std::string name = std::string(parent) + "/tie-launcher-test-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() override { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path_ + "/" + name).parent_path());
    std::ofstream(path_ + "/" + name) << text;
  }
  std::string path_;
};

std::set<std::string> names(const std::vector<Edge>& edges) {
  std::set<std::string> out;
  for (const Edge& e : edges) out.insert(e.socket);
  return out;
}

// As node_runner.cc and the supervisor write it.
const std::string kStatusDocument =
    R"({"release_id":"ab","listen":"127.0.0.1:1","proxy":"","raw_logs":false,"models_fixed":true,)"
    R"("gpu_driver_root":"","gpu_libraries":[],"node":{"sandbox":"namespaces","node_ready":true,"ready_ms":12,"units":[{"name":"wsd","state":"ready"}]}})";

std::string with(std::string text, const std::string& old, const std::string& now) {
  return text.replace(text.find(old), old.size(), now);
}

TEST(NodeStatus, IsReadByItsMembersAndNotByTheLookOfItsText) {
  auto status = parse_node_status(kStatusDocument);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_TRUE(status->node_ready && status->isolated && status->models_fixed);
  EXPECT_FALSE(status->raw_logs);
  EXPECT_EQ(status->document, kStatusDocument);
  // The same words elsewhere, and other spacing: a search of the text would see both wrongly.
  auto named =
      parse_node_status(with(kStatusDocument, R"("name":"wsd")", R"("raw_logs":true,"sandbox":"none","name":"wsd")"));
  ASSERT_TRUE(named);
  EXPECT_TRUE(named->isolated);
  EXPECT_FALSE(named->raw_logs);
  auto spaced =
      parse_node_status(with(kStatusDocument, R"("node":{"sandbox":"namespaces")", R"("node": {"sandbox": "none")"));
  ASSERT_TRUE(spaced);
  EXPECT_FALSE(spaced->isolated);
  EXPECT_EQ(status->gpu_driver_root, "");
  auto driven = parse_node_status(with(kStatusDocument, R"("gpu_driver_root":"")", R"("gpu_driver_root":"/opt/gpu")"));
  ASSERT_TRUE(driven);
  EXPECT_EQ(driven->gpu_driver_root, "/opt/gpu");
}

TEST(NodeStatus, SaysNothingOfADocumentThatIsNotTheLaunchers) {
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{\"node\":1}"), kStatusDocument.substr(0, 60),
        std::string(100'000, '['), with(kStatusDocument, "\"raw_logs\":false", "\"raw_logs\":0"),
        with(kStatusDocument, "\"sandbox\"", "\"sandbok\""),
        with(kStatusDocument, R"("gpu_driver_root":"")", R"("gpu_driver_root":1)")}) {
    auto status = parse_node_status(text);
    ASSERT_FALSE(status) << text.substr(0, 200);
    EXPECT_EQ(status.error().code, Code::kCorrupt);
  }
}

TEST(Edges, EverySocketHasOneServerAndNobodyConnectsToNothing) {
  std::map<std::string, int> servers;
  for (const ProcessRow& row : process_table())
    for (const std::string& socket : names(row.serves)) ++servers[socket];
  for (const auto& [socket, count] : servers) EXPECT_EQ(count, 1) << socket;
  // The launcher itself listens on these two.
  servers["cb_jobhelper"] = servers["tie_cloud_app"] = 1;
  for (const ProcessRow& row : process_table())
    for (const std::string& socket : names(row.connects))
      EXPECT_EQ(servers.count(socket), 1u) << row.process << " -> " << socket;
}

TEST(Edges, TicketsAndDecapsulationAreNeverInOneHand) {
  for (const ProcessRow& row : process_table()) {
    auto seen = names(row.connects);
    EXPECT_FALSE(seen.contains("wsd-authorize") && seen.contains("wsd-decap")) << row.process;
  }
  EXPECT_FALSE(names(find_process("cloudboardd")->connects).contains("wsd-decap"));
}

TEST(Edges, RequestProcessesReachNeitherKeysNorOwnerNorOperatorSockets) {
  for (const char* process : {"cb_jobhelper", "tie-cloud-app"}) {
    EXPECT_TRUE(find_process(process)->serves.empty());
    for (const char* forbidden : {"kps", "owner", "controller", "cloudboard-control", "wsd-authorize", "wsd-claims",
                                  "wsd-operator", "probe", "gpuhealth"})
      EXPECT_FALSE(names(find_process(process)->connects).contains(forbidden)) << process << " -> " << forbidden;
  }
  EXPECT_TRUE(find_process("key_protectiond")->connects.empty());
}

// A runtime meets the owner on its own model's socket alone: the operator's knows every model.
TEST(Edges, ARuntimeReachesTheOwnerOnSocketsOfItsOwnModelAlone) {
  const ProcessRow& runtime = *find_process("afm-runtime");
  EXPECT_EQ(names(runtime.connects), std::set<std::string>{"weights"});
  for (const auto& edges : {runtime.connects, runtime.serves})
    for (const Edge& edge : edges) EXPECT_TRUE(is_model_socket(edge.socket)) << edge.socket;
  for (const ProcessRow& row : process_table())
    EXPECT_EQ(names(row.connects).contains("owner"), std::string_view(row.process) == "tie-controllerd") << row.process;
}

TEST(Edges, DaemonsStartAfterWhatTheyNeedAndTheOrderHasNoCircle) {
  std::set<std::string> started;
  for (const ProcessRow& row : process_table()) {
    for (const char* needed : row.after) EXPECT_TRUE(started.contains(needed)) << row.process << " needs " << needed;
    started.insert(row.process);
  }
}

using ConfigFile = Folder;

TEST_F(ConfigFile, ReadsEveryKindOfValueAndNamesTheFaultyLine) {
  write("node.toml",
        "listen = \"0.0.0.0:9000\"\nmodels = [\"a\", \"b\"]\nprewarmed_pairs = 0\ngpu_fast_kernels = false\n");
  NodeConfig config;
  ASSERT_TRUE(read_node_config(path_ + "/node.toml", config));
  EXPECT_EQ(config.listen, "0.0.0.0:9000");
  EXPECT_EQ(config.models, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config.prewarmed_pairs, 0u);
  EXPECT_FALSE(config.gpu_fast_kernels);
  for (const char* bad : {"gpu_fast_kernels = \"no\"\n", "gpu_driver_root = 1\n", "max_request = 3\n",
                          "max_requests = -1\n", "max_requests = 1e3\n", "max_requests = 99999999999\n",
                          "models = \"a\"\n", "models = [1]\n", "listen = [", "a.b = 1\n"}) {
    write("node.toml", std::string("\n") + bad);
    NodeConfig fresh;
    auto read = read_node_config(path_ + "/node.toml", fresh);
    ASSERT_FALSE(read) << bad;
    EXPECT_EQ(read.error().code, Code::kBadRequest);
    EXPECT_NE(read.error().message.find("line 2"), std::string::npos) << read.error().message;
  }
  EXPECT_EQ(read_node_config(path_ + "/absent.toml", config).error().code, Code::kNotFound);
}

TEST(Config, ProtectionCannotBeSwitchedOffByAFile) {
  char name[] = "/tmp/tie-config-XXXXXX";
  os::Fd fd(::mkstemp(name));
  ASSERT_TRUE(os::write_all(fd.get(), as_bytes("insecure_no_sandbox = true\n"), Deadline::in_ms(1000)));
  NodeConfig config;
  EXPECT_FALSE(read_node_config(name, config));
  ::unlink(name);
}

TEST(Config, ImpossibleValuesAreRefused) {
  auto refused = [](auto change) {
    NodeConfig config;
    change(config);
    return !check_node_config(config).has_value();
  };
  EXPECT_TRUE(check_node_config(NodeConfig{}));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.listen = "8443"; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.listen = "127.0.0.1:65536"; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.listen = ":1"; }));
  EXPECT_FALSE(refused([](NodeConfig& c) { c.gpu_driver_root = "/opt/gpu driver"; }));
  for (const char* root : {"driver", "/", "/a\"b", "/a\nb", "/a\\b"})
    EXPECT_TRUE(refused([&](NodeConfig& c) { c.gpu_driver_root = root; })) << root;
  EXPECT_TRUE(refused([](NodeConfig& c) { c.listen = std::string("a\0b:1", 5); }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.proxy = c.listen; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.max_requests = 0; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.cache_mib = 0; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.cache_mib = kMaxCacheMib + 1; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.threads = kMaxThreads + 1; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.startup_timeout_s = 0; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.drain_timeout_s = kMaxTimeoutS + 1; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.max_instances = 0; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.prewarmed_pairs = kMaxPrewarmedPairs + 1; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.max_requests = c.max_instances - c.prewarmed_pairs + 1; }));
  EXPECT_FALSE(refused([](NodeConfig& c) { c.max_requests = c.max_instances - c.prewarmed_pairs; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.models = {"../etc"}; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.sandbox = "none"; }));
  EXPECT_TRUE(refused([](NodeConfig& c) { c.kernels = "amx --drain-limit-ms 0"; }));
  EXPECT_FALSE(refused([](NodeConfig& c) { c.kernels = "amx"; }));
}

// tie-model-owner would refuse it after every start.
TEST(Config, AnUnknownKernelSetIsRefusedWithThoseThatThereAre) {
  NodeConfig config;
  for (const char* known : {"amx", "avx512fp16", "avx512", "avx2", "reference"}) {
    config.kernels = known;
    EXPECT_TRUE(check_node_config(config)) << known;
  }
  for (const char* unknown : {"avx-512", "AVX2", "sse"}) {
    config.kernels = unknown;
    auto refused = check_node_config(config);
    ASSERT_FALSE(refused) << unknown;
    EXPECT_EQ(refused.error().message,
              std::string("kernels is one of amx, avx512fp16, avx512, avx2, reference, not '") + unknown + "'");
  }
}

TEST(Config, OnlyARegularFileIsRead) {
  char folder[] = "/tmp/tie-config-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string pipe = std::string(folder) + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (auto [path, kind] :
       {std::pair<std::string, std::string>{folder, "a folder"}, {pipe, "a pipe"}, {"/dev/zero", "a device"}}) {
    NodeConfig config;
    auto read = read_node_config(path, config);
    ASSERT_FALSE(read) << path;
    EXPECT_EQ(read.error().code, Code::kBadRequest);
    EXPECT_NE(read.error().message.find(path + " is " + kind), std::string::npos) << read.error().message;
  }
  ::unlink(pipe.c_str());
  ::rmdir(folder);
}

TEST(Config, ModelNamesCannotLeaveTheirFolder) {
  for (const char* good : {"smollm2-135m-instruct", "a", "A_1.2"}) EXPECT_TRUE(is_model_name(good));
  for (const char* bad : {"", ".", "..", ".hidden", "a/b", "a b", "a\n", "ä"}) EXPECT_FALSE(is_model_name(bad)) << bad;
  EXPECT_TRUE(is_model_name(std::string(48, 'x')));
  EXPECT_FALSE(is_model_name(std::string(49, 'x')));
}

TEST(Flags, HelpAndMistakesAreToldApart) {
  EXPECT_EQ(parse_launcher_flags({"--bogus"}).error().code, Code::kBadRequest);
  EXPECT_EQ(parse_launcher_flags({"--max-instances", "x"}).error().code, Code::kBadRequest);
  EXPECT_EQ(parse_launcher_flags({"--config", "/nonexistent"}).error().code, Code::kNotFound);
  auto flags = parse_launcher_flags({"--model", "a", "--model", "b"});
  ASSERT_TRUE(flags);
  EXPECT_EQ(flags->config.models.size(), 2u);
}

class RunFolder : public Folder {
 protected:
  RunFolder() : Folder("/dev/shm") {}
};

TEST_F(RunFolder, IsTakenOnceEmptiedAndRemoved) {
  std::string run = path_ + "/run";
  {
    auto first = RunDirectory::create(run);
    ASSERT_TRUE(first) << first.error().message;
    ASSERT_TRUE(first->make_folder("a/b"));
    struct stat st{};
    ::stat(run.c_str(), &st);
    EXPECT_EQ(st.st_mode & 0777, 0700u);
  }
  EXPECT_FALSE(fs::exists(run));
}

// Starts and stops at once, each in a process of its own as POSIX locks want it: what one takes away is never what
// another holds.
TEST_F(RunFolder, IsHeldByOneAtATimeHoweverTheyComeAndGo) {
  constexpr int kProcesses = 6, kRounds = 400;
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* holders = new (shared) std::atomic<int>(0);
  const std::string run = path_ + "/run";
  enum Fault : int { kNone, kTwoHolders, kFolderGone, kOtherError };
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (int round = 0; round < kRounds; ++round) {
      auto held = RunDirectory::create(run);
      if (!held && held.error().code == Code::kAlreadyExists) continue;
      if (!held) std::fprintf(stderr, "%s\n", held.error().message.c_str());
      if (!held) ::_exit(kOtherError);
      if (holders->fetch_add(1) != 0) ::_exit(kTwoHolders);
      if (::access((run + "/lock").c_str(), F_OK) != 0) ::_exit(kFolderGone);
      holders->fetch_sub(1);
    }
    ::_exit(kNone);
  }
  for (pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), kNone);
  }
  ::munmap(shared, 4096);
}

TEST_F(RunFolder, ForeignContentOpenModesAndDisksAreRefused) {
  write("run/precious", "x");
  EXPECT_EQ(RunDirectory::create(path_ + "/run").error().code, Code::kPermissionDenied);
  EXPECT_TRUE(fs::exists(path_ + "/run/precious"));
  fs::create_directory(path_ + "/open");
  ::chmod((path_ + "/open").c_str(), 0777);
  EXPECT_EQ(RunDirectory::create(path_ + "/open").error().code, Code::kPermissionDenied);
  fs::create_directory_symlink(path_ + "/run", path_ + "/link");
  EXPECT_EQ(RunDirectory::create(path_ + "/link").error().code, Code::kPermissionDenied);
  EXPECT_EQ(RunDirectory::create(path_ + "/" + std::string(80, 'x')).error().code, Code::kBadRequest);
  if (!is_in_memory("/var/tmp")) {
    EXPECT_EQ(RunDirectory::create("/var/tmp/tie-run").error().code, Code::kBadRequest);
  }
}

TEST_F(RunFolder, EverySocketPathFits) {
  std::string run(os::kMaxSocketPathBytes - 43, 'r');
  for (const ProcessRow& row : process_table())
    for (const Edge& edge : row.serves) {
      std::string path =
          is_model_socket(edge.socket) ? model_socket_path(run, edge.socket, "m") : socket_path(run, edge.socket);
      EXPECT_LE(path.size(), os::kMaxSocketPathBytes) << path;
    }
}

using Tree = Folder;

TEST_F(Tree, OneFlippedByteGivesAnotherReleaseAndOtherFilesDoNot) {
  write("bin/tie", "client");
  write("libexec/tie/cloudboardd", "daemon");
  auto before = measure_release(path_);
  ASSERT_TRUE(before);
  ASSERT_EQ(before->files.size(), 2u);
  EXPECT_EQ(before->files[0].path, "bin/tie");
  EXPECT_EQ(before->text(),
            before->files[0].sha256 + "  bin/tie\n" + before->files[1].sha256 + "  libexec/tie/cloudboardd\n");
  write("share/tie/policy.toml", "x");
  EXPECT_EQ(measure_release(path_)->release_id(), before->release_id());
  write("libexec/tie/cloudboardd", "dbemon");
  EXPECT_NE(measure_release(path_)->release_id(), before->release_id());
  write("libexec/tie/cloudboardd", "daemon");
  write("lib/extra.so", "");
  EXPECT_NE(measure_release(path_)->release_id(), before->release_id());
  EXPECT_EQ(measure_release(path_ + "/absent").error().code, Code::kNotFound);
}

using Log = Folder;

TEST_F(Log, KeepsKnownLinesDropsOthersAndStaysBounded) {
  LogFile log(path_ + "/x.log", {"d: port {}"});
  log.set_raw(false);
  log.add("d: port 1");
  log.add("a user's secret");
  log.add("d: port a user's secret");
  EXPECT_EQ(log.dropped_lines(), 2u);
  auto text = os::read_file(path_ + "/x.log", 1 << 20);
  ASSERT_TRUE(text);
  EXPECT_NE(to_string(*text).find("d: port 1"), std::string::npos);
  EXPECT_EQ(to_string(*text).find("secret"), std::string::npos);
  log.set_raw(true);
  for (int i = 0; i < 20'000; ++i) log.add(std::string(300, 'x'));
  uintmax_t total = 0;
  for (const auto& file : fs::directory_iterator(path_)) total += file.file_size();
  EXPECT_LT(total, 2 * kMaxLogFileBytes + 4096);
}

TEST_F(Log, LongAndBrokenLinesAreCut) {
  LogFile log(path_ + "/x.log", {});
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  os::Fd reader(ends[0]), writer(ends[1]);
  std::string input = std::string(1000, 'a') + "\nsecond\x01line\nunfinished";
  ASSERT_TRUE(os::write_all(writer.get(), as_bytes(input), Deadline::in_ms(1000)));
  writer.close();
  LineReader lines;
  while (lines.read_from(reader.get(), log)) {
  }
  std::string text = to_string(*os::read_file(path_ + "/x.log", 1 << 20));
  EXPECT_NE(text.find(std::string(kMaxLineBytes, 'a') + "\n"), std::string::npos);
  EXPECT_EQ(text.find(std::string(kMaxLineBytes + 1, 'a')), std::string::npos);
  EXPECT_NE(text.find("second?line"), std::string::npos);
  EXPECT_NE(text.find("unfinished"), std::string::npos);
}

TEST(PortCheck, NamesAPortThatIsTakenAndLetsAFreeOnePass) {
  os::Fd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof at;
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  ASSERT_EQ(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  std::string address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  auto refused = check_port_free(address, "--proxy");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kAlreadyExists);
  EXPECT_TRUE(refused.error().message.starts_with(address + " is in use")) << refused.error().message;
  EXPECT_NE(refused.error().message.find("--proxy ADDRESS:PORT"), std::string::npos);
  taken.close();
  EXPECT_TRUE(check_port_free(address, "--proxy"));
  EXPECT_EQ(check_port_free("192.0.2.1:80", "--listen").error().code, Code::kIo) << "not this machine's address";
  EXPECT_TRUE(check_port_free("no.such.name.invalid:80", "--listen")) << "the daemon will say";
}

TEST_F(Log, TheSameWordsAtEachStartAreToldOnce) {
  LogFile log(path_ + "/x.log", {});
  for (int i = 0; i < 3; ++i) {
    log.add("d: starting");
    log.add("d: no");
  }
  EXPECT_EQ(log.last_lines(), "d: starting | d: no");
}

TEST(Doctor, NeverClaimsMoreThanSoftwareEvidence) {
  auto findings = examine_machine("");
  auto attestation =
      std::find_if(findings.begin(), findings.end(), [](const Finding& f) { return f.name == "attestation"; });
  ASSERT_NE(attestation, findings.end());
  EXPECT_EQ(attestation->verdict, Verdict::kMissing);
  for (const Finding& f : findings) {
    EXPECT_FALSE(f.found.empty()) << f.name;
    if (f.verdict != Verdict::kOk) {
      EXPECT_FALSE(f.meaning.empty() || f.remedy.empty()) << f.name;
    }
  }
  EXPECT_NE(findings_as_json(findings).find("\"assurance\":\"unattested\""), std::string::npos);
}

}  // namespace
}  // namespace tie::launcher
