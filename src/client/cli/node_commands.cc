#include "client/cli/node_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "client/cli/unknown_word.h"
#include "client/session/session.h"
#include "inference/bones/kernel_check.h"
#include "inference/bones/model.h"
#include "os/process.h"
#include "supervision/launcher/doctor.h"
#include "supervision/launcher/node_runner.h"
#include "supervision/launcher/node_status.h"
#include "supervision/launcher/release_manifest.h"
#include "supervision/launcher/run_directory.h"

namespace tie::cli {
namespace {

constexpr int64_t kStopLimitMs = 90'000;   // the launcher's own limits end well before
constexpr int64_t kStartSlackMs = 15'000;  // staging and measuring come before the launcher's own deadline

int complain(const Error& error, int code) {
  std::fprintf(stderr, "tie: %s\n", error.message.c_str());
  return code;
}

// Parses `arguments`; nullopt when the command may go on, else the exit code.
std::optional<int> parse(CLI::App& app, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

struct StartedLauncher {
  pid_t pid = -1;
  os::Fd lines;
};

Result<StartedLauncher> start_launcher(const std::vector<std::string>& arguments, bool detach) {
  TIE_TRY(std::string prefix, launcher::installed_prefix());
  std::string program = prefix + "/libexec/tie/tie-launcher";
  std::vector<char*> words = {program.data()};
  for (const std::string& a : arguments) words.push_back(const_cast<char*>(a.c_str()));
  words.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
  os::Fd reader(ends[0]), writer(ends[1]);
  pid_t pid = ::fork();
  if (pid < 0) return fail_errno("starting the launcher", errno);
  if (pid == 0) {
    // In the foreground the node ends with this command, however it ends; detached it belongs to no terminal.
    if (detach) ::setsid();
    if (!detach) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    ::dup2(null, 0);
    ::dup2(null, 1);
    ::dup2(writer.get(), 2);
    ::execv(program.c_str(), words.data());
    std::fprintf(stderr, "failed: cannot start %s: %s\n", program.c_str(), std::strerror(errno));
    ::_exit(127);
  }
  return StartedLauncher{pid, std::move(reader)};
}

int reap(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

void print_next_steps(const launcher::NodeConfig& config) {
  auto models = launcher::served_models(config);
  std::string model = models ? models->front() : "MODEL";
  if (config.tpm.empty())
    std::printf(
        "\nThe node is ready. Its evidence is software, so it is UNATTESTED (`tie doctor` says what is missing).\n");
  else
    std::printf("\nThe node is ready. Its evidence is quotes of its TPM; `tie keys` says how a policy judges them.\n");
  if (config.insecure_no_sandbox)
    std::printf("It runs WITHOUT ISOLATION (--insecure-no-sandbox): do not give it anything private.\n");
  if (config.proxy != "none") {
    std::printf("  curl -N http://%s/v1/chat/completions -H 'content-type: application/json' \\\n",
                config.proxy.c_str());
    std::printf(
        "    -d '{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"stream\":true}'\n",
        model.c_str());
  }
  // Where the defaults do not lead here, the place is named.
  const std::string chat =
      "tie chat" + (config.listen == launcher::NodeConfig{}.listen ? "" : " --node " + config.listen);
  const std::string down = "tie down" + (config.run_dir.empty() ? "" : " --run-dir " + config.run_dir);
  std::printf("  %-15s talk to it in the terminal\n  %-15s stop it\n", chat.c_str(), down.c_str());
  std::fflush(stdout);
}

class UpSession {
 public:
  UpSession(StartedLauncher started, launcher::NodeConfig config, bool detach)
      : started_(std::move(started)), config_(std::move(config)), detach_(detach) {}

  int run() {
    auto stop = os::termination_signal_fd();
    if (!stop) return complain(stop.error(), 1);
    Deadline startup = Deadline::in_ms(int64_t{config_.startup_timeout_s} * 1000 + kStartSlackMs);
    while (!ready_ || !detach_) {
      pollfd fds[] = {{started_.lines.get(), POLLIN, 0}, {stop->get(), POLLIN, 0}};
      ::poll(fds, 2, 1000);
      if (fds[1].revents != 0) return interrupted();
      if (fds[0].revents != 0 && !take_lines()) return reap(started_.pid);
      if (!ready_ && startup.passed()) {
        std::fprintf(stderr, "tie: the node did not become ready in time\n");
        return interrupted() == 0 ? 1 : 1;
      }
    }
    return 0;
  }

 private:
  int interrupted() {
    ::kill(started_.pid, SIGTERM);
    while (take_lines()) {
    }
    return reap(started_.pid);
  }

  // Prints what the launcher says. False at its end.
  bool take_lines() {
    char buffer[4096];
    ssize_t n = ::read(started_.lines.get(), buffer, sizeof buffer);
    if (n <= 0) return n < 0 && errno == EINTR;
    pending_.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = pending_.find('\n')) != std::string::npos; pending_.erase(0, end + 1)) {
      std::string line = pending_.substr(0, end);
      bool bad = line.starts_with("failed: ") || line.starts_with("WARNING");
      std::fprintf(bad ? stderr : stdout, "%s\n", line.c_str());
      std::fflush(stdout);
      if (line.starts_with("node ready in ") && !ready_) {
        ready_ = true;
        print_next_steps(config_);
      }
    }
    return true;
  }

  StartedLauncher started_;
  launcher::NodeConfig config_;
  bool detach_;
  bool ready_ = false;
  std::string pending_;
};

std::optional<std::string> run_directory_of(const std::string& wanted) {
  auto chosen = launcher::choose_run_directory(wanted);
  if (!chosen) {
    complain(chosen.error(), 1);
    return std::nullopt;
  }
  return *chosen;
}

// SIGTERM, and SIGKILL when that is not enough. The pidfd makes sure that a reused number is not hit.
Result<void> stop_launcher(const std::string& run, pid_t pid) {
  TIE_TRY(os::Fd pidfd, os::pidfd_open(pid));
  if (launcher::running_launcher(run) != pid) return {};
  TIE_CHECK_OK(os::pidfd_signal(pidfd.get(), SIGTERM));
  TIE_TRY(bool ended, os::pidfd_wait_exit(pidfd.get(), Deadline::in_ms(kStopLimitMs)));
  if (ended) return {};
  TIE_CHECK_OK(os::pidfd_signal(pidfd.get(), SIGKILL));
  TIE_TRY(ended, os::pidfd_wait_exit(pidfd.get(), Deadline::in_ms(5000)));
  if (!ended) return fail(Code::kDeadline, "the launcher does not end");
  return {};
}

}  // namespace

int up_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> passed;
  bool detach = false;
  for (const std::string& a : arguments) {
    if (a == "--detach" || a == "-d") {
      detach = true;
    } else {
      passed.push_back(a);
    }
  }
  auto flags = launcher::parse_launcher_flags(passed);
  if (!flags) return flags.error().code == Code::kCancelled ? 0 : complain(flags.error(), 2);
  if (auto runs = bones::check_kernel_set(flags->config.kernels); !runs) return complain(runs.error(), 2);
  auto started = start_launcher(passed, detach);
  if (!started) return complain(started.error(), 1);
  return UpSession(std::move(*started), flags->config, detach).run();
}

int down_command(const std::vector<std::string>& arguments) {
  CLI::App app{"Stops the node of this machine and leaves nothing behind", "tie down"};
  std::string wanted;
  app.add_option("--run-dir", wanted, "the node's run directory, if it was not the default");
  if (auto code = parse(app, arguments)) return *code;
  auto run = run_directory_of(wanted);
  if (!run) return 1;
  auto pid = launcher::running_launcher(*run);
  if (pid) {
    if (auto stopped = stop_launcher(*run, *pid); !stopped) return complain(stopped.error(), 1);
  }
  if (auto removed = launcher::remove_stale_run_directory(*run); !removed) return complain(removed.error(), 1);
  std::printf(pid ? "stopped\n" : "no node is running in %s\n", run->c_str());
  return 0;
}

int status_command(const std::vector<std::string>& arguments) {
  CLI::App app{"Shows the state of this machine's node as JSON", "tie status"};
  std::string wanted;
  app.add_option("--run-dir", wanted, "the node's run directory, if it was not the default");
  if (auto code = parse(app, arguments)) return *code;
  auto run = run_directory_of(wanted);
  if (!run) return 1;
  auto status = launcher::read_node_status(*run);
  if (!status) {
    const bool none = status.error().code == Code::kNotReady;
    return complain(status.error(), none ? 3 : 1);
  }
  std::fputs(status->document.c_str(), stdout);
  return status->node_ready ? 0 : 3;
}

namespace {

// What a client with this policy sees of a node's evidence: a finding for each check, in the verifier's words.
std::vector<launcher::Finding> examine_evidence(const std::string& node, const std::string& policy) {
  const auto missing = [](const std::string& found) {
    return launcher::Finding{"evidence", launcher::Verdict::kMissing, found, "clients with this policy refuse the node",
                             ""};
  };
  client::SessionOptions options;
  options.node = node;
  options.policy_path = policy;
  auto session = client::Session::open(std::move(options));
  if (!session) return {missing(session.error().message)};
  auto seen = (*session)->inspect();
  if (!seen) return {missing(seen.error().message)};
  std::vector<launcher::Finding> out;
  for (const client::VerdictLine& line : seen->verdict)
    out.push_back(line.passed ? launcher::Finding{"evidence", launcher::Verdict::kOk, line.text, "", ""}
                              : missing(line.text));
  return out;
}

// What an operator may force with `kernels`, and whether what the configuration forces is among it.
launcher::Finding examine_kernel_sets(const std::string& config_file) {
  const char* kName = "kernel sets";
  auto flags = launcher::parse_launcher_flags(config_file.empty() ? std::vector<std::string>{}
                                                                  : std::vector<std::string>{"--config", config_file});
  if (!flags)
    return {kName, launcher::Verdict::kBlocking, flags.error().message, "this configuration does not start a node",
            "correct the file"};
  const std::string& wanted = flags->config.kernels;
  if (auto runs = bones::check_kernel_set(wanted); !runs)
    return {kName, launcher::Verdict::kBlocking, runs.error().message, "a node with this configuration does not start",
            "take `kernels` out of the configuration (the fastest one is then chosen), or name another"};
  return {
      kName, launcher::Verdict::kOk,
      wanted.empty() ? fmt::format("{}", fmt::join(bones::available_kernel_sets(), " ")) : wanted + ", as configured",
      "", ""};
}

}  // namespace

int doctor_command(const std::vector<std::string>& arguments) {
  CLI::App app{"Explains which guarantees this machine can give, and how to get the missing ones", "tie doctor"};
  bool json = false, strict = false;
  std::string run_dir, node, policy, config;
  app.add_flag("--json", json, "for programs");
  app.add_option("--config", config, "the configuration that `tie up` would be given");
  app.add_option("--node", node, "HOST:PORT: also judge this node's evidence, check by check");
  app.add_option("--policy", policy, "the client's policy for --node (default: as for `tie ask`)");
  app.add_flag("--strict", strict, "exit with 1 when any guarantee is missing");
  app.add_option("--run-dir", run_dir, "the run directory that would be used");
  if (auto code = parse(app, arguments)) return *code;
  auto findings = launcher::examine_machine(run_dir);
  findings.push_back(examine_kernel_sets(config));
  if (!node.empty())
    for (launcher::Finding& finding : examine_evidence(node, policy)) findings.push_back(std::move(finding));
  std::fputs((json ? launcher::findings_as_json(findings) : launcher::findings_as_text(findings)).c_str(), stdout);
  bool blocking = launcher::any(findings, launcher::Verdict::kBlocking),
       missing = launcher::any(findings, launcher::Verdict::kMissing);
  if (!json)
    std::printf("\n%s\n", blocking  ? "`tie up` will refuse on this machine."
                          : missing ? "`tie up` works; what is marked MISSING is not guaranteed."
                                    : "Everything is in place.");
  return blocking || (strict && missing) ? 1 : 0;
}

int release_command(const std::vector<std::string>& arguments) {
  CLI::App app{"Measures an installed tree", "tie release"};
  app.require_subcommand(1);
  CLI::App* measure = app.add_subcommand("measure", "print the release id of an installed tree");
  std::string prefix;
  bool policy = false, manifest = false;
  measure->add_option("PREFIX", prefix, "the tree (default: the one this program runs from)");
  measure->add_flag("--policy", policy, "print a client's policy that accepts this release with software evidence");
  measure->add_flag("--manifest", manifest, "print the digest of each file");
  if (auto unknown = explain_unknown_word(app, arguments)) {
    std::fprintf(stderr, "%s\n", unknown->c_str());
    return 2;
  }
  if (auto code = parse(app, arguments)) return *code;
  if (prefix.empty()) {
    auto own = launcher::installed_prefix();
    if (!own) return complain(own.error(), 1);
    prefix = *own;
  }
  auto measured = launcher::measure_release(prefix);
  if (!measured) return complain(measured.error(), 1);
  std::string id = measured->release_id();
  if (manifest) {
    std::fputs(measured->text().c_str(), stdout);
  } else if (policy) {
    std::printf("release_ids = [\"%s\"]\naccepted_kinds = [\"software\"]\n", id.c_str());
  } else {
    std::printf("%s\n", id.c_str());
  }
  return 0;
}

}  // namespace tie::cli
