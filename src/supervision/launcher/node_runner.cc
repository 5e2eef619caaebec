#include "supervision/launcher/node_runner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/random.h"
#include "keys/tokens/token_gate.h"
#include "os/open_files.h"
#include "os/process.h"
#include "supervision/launcher/node_status.h"
#include "supervision/launcher/port_check.h"
#include "supervision/launcher/run_directory.h"
#include "supervision/launcher/supervisor.h"
#include "supervision/launcher/trial.h"
#include "supervision/signed_assets/asset_manifest.h"

namespace tie::launcher {
namespace {

constexpr uint64_t kLeastOpenFiles = 256;  // of the launcher with its default number of instances

void add_flags(CLI::App& app, LauncherFlags& flags) {
  NodeConfig& c = flags.config;
  app.option_defaults()->always_capture_default();
  app.add_option("--config", flags.config_file, "configuration file (node.toml)");
  app.add_option("--listen", c.listen, "address:port of the public gRPC service");
  app.add_option(
      "--assets", c.assets,
      "folder with models/NAME/... (default: /var/lib/tie/assets where it exists, else ~/.local/share/tie/assets)");
  app.add_option("--assets-key", c.assets_key, "public key of the operator: serve signed assets only");
  app.add_option("--model", c.models, "serve only these models (default: all of the assets)")->default_str("");
  app.add_option("--run-dir", c.run_dir, "folder for sockets and state, in memory (default: chosen and printed)");
  app.add_option("--token-issuer", c.token_issuer, "the issuer's file: requests then need its one-time tokens");
  app.add_option("--tpm", c.tpm, "device or socket of a TPM 2.0 that states what runs here");
  app.add_option("--proxy", c.proxy, "address:port of the local OpenAI-compatible proxy; none: no proxy");
  app.add_option("--cache-mib", c.cache_mib, "MiB of memory for the encrypted KV caches of conversations");
  app.add_option("--prewarmed", c.prewarmed_pairs, "request processes kept ready");
  app.add_option("--max-requests", c.max_requests, "requests admitted at once");
  app.add_option("--max-instances", c.max_instances, "processes of each per-request program");
  app.add_option("--threads", c.threads, "threads of the runtime (0: one per CPU)");
  app.add_option("--kernels", c.kernels, "kernel set of the runtime: amx, avx512fp16, avx512, avx2 or reference");
  app.add_option("--gpu-driver-root", c.gpu_driver_root,
                 "folder of a GPU driver that is not the system's; shown everywhere");
  app.add_flag("!--gpu-portable-kernels", c.gpu_fast_kernels, "leave the matrix units of a GPU alone");
  app.add_option("--startup-timeout", c.startup_timeout_s, "seconds until the node must be ready");
  app.add_option("--drain-timeout", c.drain_timeout_s, "seconds for requests in flight when stopping");
  app.add_option("--sandbox", c.sandbox, "who confines the processes: auto, direct or bubblewrap");
  app.add_flag("--insecure-no-sandbox", c.insecure_no_sandbox,
               "run without any isolation, where user namespaces are missing; shown everywhere");
  app.add_flag("--raw-logs", c.raw_logs, "keep every line of every process, also such as may hold a user's text");
  app.option_defaults()->always_capture_default(false);
  app.add_option("--status-fd", flags.status_fd, "write progress lines to this descriptor");
}

Result<void> parse_into(LauncherFlags& flags, std::vector<std::string> arguments) {
  CLI::App app{"Starts a TIE node on this machine and keeps it running until `tie down` or Ctrl-C", "tie up"};
  bool detach = false;  // `tie up` takes it before the launcher sees the rest
  app.add_flag("-d,--detach", detach, "return when the node is ready; it runs on until `tie down`");
  add_flags(app, flags);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return fail(Code::kCancelled, "help");
  } catch (const CLI::ParseError& error) {
    return fail(Code::kBadRequest, error.what());
  }
  return {};
}

void say(int fd, const std::string& line) {
  std::string text = line + "\n";
  (void)!::write(fd, text.data(), text.size());
}

// The first one that can confine a trial program on this machine.
Result<std::unique_ptr<os::SandboxLauncher>> choose_sandbox(const NodeConfig& config) {
  if (config.insecure_no_sandbox) return os::make_unprotected_launcher();
  std::string reasons;
  for (auto* make : {&os::make_direct_launcher, &os::make_bubblewrap_launcher}) {
    const char* name = make == &os::make_direct_launcher ? "direct" : "bubblewrap";
    if (config.sandbox != "auto" && config.sandbox != name) continue;
    auto made = make();
    Result<void> usable = made ? try_sandbox(**made) : std::unexpected(made.error());
    if (usable) return made;
    reasons += usable.error().message + ". ";
  }
  return fail(Code::kNotReady,
              reasons + "`tie doctor` explains; --insecure-no-sandbox runs the node without isolation");
}

// The user's own policy, else the one that came with the build; never one that the node wrote.
std::string client_policy(const std::string& prefix) {
  const char* configured = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  std::string folder = configured != nullptr ? configured : std::string(home != nullptr ? home : "") + "/.config";
  for (const std::string& path : {folder + "/tie/policy.toml", prefix + "/share/tie/policy.toml"})
    if (path[0] == '/' && ::access(path.c_str(), R_OK) == 0) return path;
  return "";
}

// What the processes that judge one-time tokens read: the issuer's file as it is now, and a context for this start.
Result<void> stage_tokens(const std::string& issuer_file, RunDirectory& directory) {
  TIE_TRY(Bytes text, os::read_file(issuer_file, tokens::kMaxIssuerFileBytes));
  auto issuer = tokens::parse_issuer_file(as_text(text));
  if (!issuer) return std::unexpected(std::move(issuer.error()).context(issuer_file));
  Bytes context(tokens::kContextBytes);
  random_bytes(context);
  TIE_CHECK_OK(directory.make_folder("tokens"));
  TIE_CHECK_OK(os::write_file_atomic(directory.path() + "/tokens/context", context, 0400));
  return os::write_file_atomic(directory.path() + "/tokens/issuer", text, 0400);
}

Result<void> supervise(const LauncherFlags& flags, int stop_fd) {
  const NodeConfig& config = flags.config;
  TIE_TRY(std::string prefix, installed_prefix());
  TIE_TRY(std::vector<std::string> models, served_models(config));
  TIE_CHECK_OK(os::require_open_files(kLeastOpenFiles, "the node"));
  TIE_TRY(std::unique_ptr<os::SandboxLauncher> sandbox, choose_sandbox(config));
  TIE_TRY(std::string run, choose_run_directory(config.run_dir));
  std::string assets = config.assets.empty() ? default_assets_folder() : config.assets;
  std::string policy = client_policy(prefix);
  TIE_CHECK_OK(os::harden_process());  // empties the environment, which everything above may have asked
  TIE_TRY(RunDirectory directory, RunDirectory::create(run));
  TIE_CHECK_OK(check_port_free(config.listen, "--listen"));
  if (config.proxy != "none") TIE_CHECK_OK(check_port_free(config.proxy, "--proxy"));
  TIE_TRY(Stage stage, Stage::create(run, prefix));
  if (!config.assets_key.empty()) {
    TIE_TRY(Bytes key, assets::read_public_key(config.assets_key));
    stage.require_signed(std::move(key));
  }
  NodePlace place{run, assets, models, policy};
  TIE_TRY(NodePlan plan, plan_node(config, place, stage));
  for (const std::string& folder : plan.folders) TIE_CHECK_OK(directory.make_folder(folder));
  TIE_CHECK_OK(os::write_file_atomic(run + "/release/manifest", as_bytes(stage.manifest().text()), 0400));

  if (!config.token_issuer.empty()) TIE_CHECK_OK(stage_tokens(config.token_issuer, directory));

  std::string release = stage.manifest().release_id();
  say(flags.status_fd,
      fmt::format("release {}, sandbox {}, run directory {}", release.substr(0, 12), sandbox->name(), run));
  if (config.insecure_no_sandbox)
    say(flags.status_fd, "WARNING: --insecure-no-sandbox: processes of this node are not isolated from each other");
  if (config.raw_logs) say(flags.status_fd, "WARNING: --raw-logs: logs may hold what users wrote");
  if (!config.gpu_driver_root.empty())
    say(flags.status_fd, "WARNING: gpu_driver_root: code of the GPU driver in " + config.gpu_driver_root +
                             " runs in the processes that compute; the release id does not cover it");
  SupervisorOptions options;
  options.run = run;
  options.max_instances = config.max_instances;
  options.startup_timeout_ms = int64_t{config.startup_timeout_s} * 1000;
  options.drain_timeout_ms = int64_t{config.drain_timeout_s} * 1000;
  options.raw_logs = config.raw_logs;
  options.stop_first = {"tie-proxy", "cloudboardd"};
  LogFile own_log(run + "/log/launcher.log", {});
  options.progress = [&](const std::string& line) {
    say(flags.status_fd, line);
    own_log.note(line);
  };
  std::vector<std::string> gpu_libraries;
  for (const MeasuredFile& library : stage.added_libraries())
    gpu_libraries.push_back(fmt::format("{{\"path\":\"{}\",\"sha256\":\"{}\"}}", library.path, library.sha256));
  options.write_status = [&](const std::string& units) {
    std::string text = fmt::format(
        "{{\"release_id\":\"{}\",\"listen\":\"{}\",\"proxy\":\"{}\",\"raw_logs\":{},\"models_fixed\":{},"
        "\"gpu_driver_root\":\"{}\",\"gpu_libraries\":[{}],\"node\":{}}}\n",
        release, config.listen, config.proxy, config.raw_logs, !config.models.empty(), config.gpu_driver_root,
        fmt::join(gpu_libraries, ","), units);
    (void)os::write_file_atomic(node_status_path(run), as_bytes(text), 0600);
  };
  Supervisor supervisor(*sandbox, std::move(plan.units), std::move(options));
  return supervisor.run(stop_fd);
}

}  // namespace

Result<LauncherFlags> parse_launcher_flags(const std::vector<std::string>& arguments) {
  // Twice: first to learn the file's name, then over the file's values.
  LauncherFlags first;
  TIE_CHECK_OK(parse_into(first, arguments));
  LauncherFlags out;
  std::string file = first.config_file;
  if (file.empty() && ::access("/etc/tie/node.toml", R_OK) == 0) file = "/etc/tie/node.toml";
  if (!file.empty()) {
    TIE_CHECK_OK(read_node_config(file, out.config));
    TIE_CHECK_OK(check_node_config(out.config));  // a wrong line is wrong even where the command line overrides it
  }
  TIE_CHECK_OK(parse_into(out, arguments));
  TIE_CHECK_OK(check_node_config(out.config));
  return out;
}

Result<void> run_node(const LauncherFlags& flags) {
  TIE_TRY(os::Fd stop, os::termination_signal_fd());
  auto outcome = supervise(flags, stop.get());
  if (!outcome) say(flags.status_fd, "failed: " + outcome.error().message);
  return outcome;
}

}  // namespace tie::launcher
