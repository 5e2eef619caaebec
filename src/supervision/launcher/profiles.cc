#include "supervision/launcher/profiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "supervision/launcher/gpu_access.h"
#include "supervision/launcher/run_directory.h"

namespace tie::launcher {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr os::ResourceLimits kHelperLimits = {
    .address_space_bytes = 2048 * kMiB, .cpu_seconds = 120, .open_files = 64, .file_bytes = 1};
constexpr os::ResourceLimits kAppLimits = {
    .address_space_bytes = 4096 * kMiB, .cpu_seconds = 300, .open_files = 128, .file_bytes = 1024 * kMiB};
constexpr os::ResourceLimits kDaemonLimits = {.open_files = 4096};
constexpr os::ResourceLimits kStoreLimits = {.open_files = 8192};  // large entries are descriptors

class Planner {
 public:
  Planner(const NodeConfig& config, const NodePlace& place, Stage& stage)
      : config_(config), place_(place), stage_(stage) {}

  Result<NodePlan> plan() {
    TIE_TRY(app_assets_, stage_.app_assets(place_.assets, place_.run + "/served", place_.models));
    TIE_TRY(gpu_, find_gpu_driver(config_.gpu_driver_root));
    for (const ProcessRow& row : process_table()) {
      if (std::string_view(row.process) == "tie-proxy" && config_.proxy == "none") continue;
      if (std::string_view(row.process) == "token_spentd" && config_.token_issuer.empty()) continue;
      if (row.life != Life::kPerModel) {
        TIE_CHECK_OK(add(row, ""));
        continue;
      }
      for (const std::string& model : place_.models) TIE_CHECK_OK(add(row, model));
    }
    plan_.folders.insert(plan_.folders.end(), {"log", "release", "served", "state/cloudboardd"});
    return std::move(plan_);
  }

 private:
  Result<void> add(const ProcessRow& row, const std::string& model) {
    Unit unit;
    unit.name = model.empty() ? row.process : std::string(row.process) + "@" + model;
    unit.life = row.life;
    unit.restart_at_once = row.life == Life::kPerModel;
    for (const char* name : row.after) unit.after.push_back(name);
    bool container = row.life == Life::kPerModel;
    TIE_TRY(StagedProgram program, stage_.program(program_of(row)));
    os::SandboxProfile& profile = unit.profile;
    profile.name = unit.name;
    profile.program = program.path;
    profile.binds = program.binds;
    profile.binds.push_back({.path = "/dev/null", .device = true});
    profile.binds.push_back({.path = "/dev/urandom", .device = true});
    unit.log_formats = program.log_formats;
    base_profile(row, profile);
    add_sockets(row, model, unit);
    if (container) TIE_CHECK_OK(container_programs(unit));
    // A recycle may be there because assets changed; request processes that start after it read the new ones.
    if (container)
      unit.before_start = [stage = &stage_, place = place_]() -> Result<void> {
        TIE_TRY(std::string refreshed, stage->app_assets(place.assets, place.run + "/served", place.models));
        return {};
      };
    add_files(row, profile);
    add_arguments(row, model, profile);
    if (const std::vector<uint32_t> gpus = gpus_for(row, model); !gpus.empty() && !gpu_.nodes.empty())
      TIE_CHECK_OK(add_gpu(program_of(row), container, gpus, profile));
    if (row.life == Life::kPerRequest) {
      std::string socket = std::string(row.process) == "tie-cloud-app" ? "tie_cloud_app" : row.process;
      unit.listen_path = socket_path(place_.run, socket);
      plan_.folders.push_back(socket);
    }
    plan_.units.push_back(std::move(unit));
    return {};
  }

  // A model's container holds two programs under a small init; the proxy is a command of the client's program.
  static std::string program_of(const ProcessRow& row) {
    if (row.life == Life::kPerModel) return "afm-runtime-init";
    return std::string_view(row.process) == "tie-proxy" ? "tie" : row.process;
  }

  void base_profile(const ProcessRow& row, os::SandboxProfile& profile) {
    std::string_view name = row.process;
    profile.environment = {{"LANG", "C.UTF-8"}};
#ifdef TIE_SANITIZED
    profile.proc = true;  // the sanitizers read /proc/self/maps
    profile.environment.emplace_back("ASAN_OPTIONS", "detect_leaks=0");
#endif
    if (row.life == Life::kPerRequest) {
      profile.environment.emplace_back("LISTEN_FDS", "1");
      profile.syscalls = os::SyscallPolicy::kPerRequest;
      profile.limits = name == "cb_jobhelper" ? kHelperLimits : kAppLimits;
      return;
    }
    profile.environment.emplace_back("TIE_READY_FD", "3");
    profile.limits = name == "cache_stored" ? kStoreLimits : kDaemonLimits;
    profile.syscalls = row.life == Life::kPerModel ? os::SyscallPolicy::kContainer : os::SyscallPolicy::kDaemon;
    if (name == "cloudboardd" || name == "tie-proxy") {
      profile.syscalls = os::SyscallPolicy::kNetworkDaemon;
      profile.host_network = true;
    }
  }

  // A served socket's folder is writable, because the daemon makes the socket in it; of others only connecting is
  // possible.
  void add_sockets(const ProcessRow& row, const std::string& model, Unit& unit) {
    for (const Edge& edge : row.serves) {
      if (is_model_socket(edge.socket) && model.empty())
        add_model_sockets(edge, unit);
      else
        add_socket(edge, model, true, unit);
    }
    for (const Edge& edge : row.connects) {
      if (std::string_view(edge.socket) == "token-spend" && config_.token_issuer.empty()) continue;
      if (is_model_socket(edge.socket) && model.empty()) {
        // One that talks to every model sees the folder that holds one such socket for each.
        unit.profile.binds.push_back({.path = place_.run + "/" + edge.socket});
      } else {
        add_socket(edge, model, false, unit);
      }
    }
  }

  // A daemon that serves one such socket for each model. The folders are there before it: a model's container sees its
  // own through one of them.
  void add_model_sockets(const Edge& edge, Unit& unit) {
    const std::string folder = place_.run + "/" + edge.socket;
    unit.profile.binds.push_back({.path = folder, .writable = true});
    unit.profile.arguments.insert(unit.profile.arguments.end(), {edge.flag, folder});
    for (const std::string& model : place_.models) plan_.folders.push_back(std::string(edge.socket) + "/" + model);
  }

  void add_socket(const Edge& edge, const std::string& model, bool serves, Unit& unit) {
    std::string path = is_model_socket(edge.socket) ? model_socket_path(place_.run, edge.socket, model)
                                                    : socket_path(place_.run, edge.socket);
    std::string folder = path.substr(0, path.rfind('/'));
    unit.profile.binds.push_back({.path = folder, .writable = serves});
    if (serves) plan_.folders.push_back(folder.substr(place_.run.size() + 1));
    if (edge.flag != nullptr) unit.profile.arguments.insert(unit.profile.arguments.end(), {edge.flag, path});
  }

  Result<void> container_programs(Unit& unit) {
    for (const char* name : {"afm-runtime", "tie-status-probe"}) {
      TIE_TRY(StagedProgram program, stage_.program(name));
      unit.profile.binds.push_back({.path = program.path, .executable = true});
      unit.log_formats.insert(unit.log_formats.end(), program.log_formats.begin(), program.log_formats.end());
      // The loader looks for each program's libraries in the same place, so the three share one folder.
      if (!program.binds.empty()) TIE_CHECK_OK(stage_.merge_libraries(name, "afm-runtime-init"));
    }
    return {};
  }

  void add_files(const ProcessRow& row, os::SandboxProfile& profile) {
    std::string_view name = row.process;
    auto& binds = profile.binds;
    if (name == "tie-model-owner" || name == "workload_servicesd") add_assets(binds);
    if (name == "tie-model-owner" && !config_.assets_key.empty()) binds.push_back({.path = config_.assets_key});
    if (name == "workload_servicesd") binds.push_back({.path = place_.run + "/release"});
    // What the owner hands out is what the claims name and request processes are prepared for.
    if (name == "tie-model-owner" || name == "workload_servicesd")
      binds.push_back({.path = place_.run + "/served", .writable = name == "tie-model-owner"});
    if (name == "tie-cloud-app") binds.push_back({.path = app_assets_});
    if (name == "cloudboardd") binds.push_back({.path = place_.run + "/state/cloudboardd", .writable = true});
    if (name == "token_spentd") {
      binds.push_back({.path = place_.run + "/state/token_spentd", .writable = true});
      plan_.folders.push_back("state/token_spentd");
    }
    if (states_by_tpm(name)) add_tpm(binds);
    if (states_by_tpm(name) && name == "workload_servicesd") {
      binds.push_back({.path = place_.run + "/state/workload_servicesd", .writable = true});
      plan_.folders.push_back("state/workload_servicesd");
    }
    if (judges_tokens(name)) binds.push_back({.path = place_.run + "/tokens"});
    if (name == "tie-proxy" && !place_.policy.empty()) binds.push_back({.path = place_.policy});
    // The runtime asks the kernel about CPUs and memory, the probe about its sibling.
    if (row.life == Life::kPerModel || name == "gpuhealthd") profile.proc = true;
  }

  // The GPUs that a process sees: the runtime those of its model's ranks, the owner those of all models, gpuhealthd
  // every one as soon as a model wishes any.
  std::vector<uint32_t> gpus_for(const ProcessRow& row, const std::string& model) const {
    const std::vector<uint32_t> here = gpu_numbers(gpu_.nodes);
    if (!model.empty()) return gpus_of_model(place_.assets, model, here);
    const std::string_view name = row.process;
    std::vector<uint32_t> all;
    if (name != "tie-model-owner" && name != "gpuhealthd") return all;
    for (const std::string& m : place_.models)
      for (const uint32_t gpu : gpus_of_model(place_.assets, m, here)) all.push_back(gpu);
    return name == "gpuhealthd" && !all.empty() ? here : all;
  }

  Result<void> add_gpu(const std::string& program, bool runtime, const std::vector<uint32_t>& gpus,
                       os::SandboxProfile& profile) {
    allow_gpu(nodes_of_gpus(gpu_.nodes, gpus), profile);
    if (runtime && gpus.size() > 1) allow_gpu_ranks(profile);
    TIE_CHECK_OK(stage_.add_libraries(gpu_.libraries, program));
    const std::string kernels = stage_.prefix() + "/lib/tie/tie_kernels.fatbin";
    std::error_code ignored;
    const bool runs_kernels = runtime || program == "tie-model-owner";
    if (!runs_kernels || !std::filesystem::exists(kernels, ignored)) return {};
    profile.binds.push_back({.path = kernels});
    // Of a container, among the arguments of its first program.
    const auto second = std::find(profile.arguments.begin() + 1, profile.arguments.end(), "--");
    profile.arguments.insert(second, {"--gpu-kernels", kernels});
    return {};
  }

  bool states_by_tpm(std::string_view name) const {
    return !config_.tpm.empty() && (name == "workload_servicesd" || name == "key_protectiond");
  }

  // A socket is seen through its folder: a TPM emulator that starts anew makes another one there.
  void add_tpm(std::vector<os::Bind>& binds) const {
    std::error_code ignored;
    const bool device = std::filesystem::is_character_file(config_.tpm, ignored);
    binds.push_back(
        {.path = device ? config_.tpm : std::filesystem::path(config_.tpm).parent_path().string(), .device = device});
  }

  bool judges_tokens(std::string_view name) const {
    return !config_.token_issuer.empty() &&
           (name == "token_spentd" || name == "cb_jobhelper" || name == "workload_servicesd");
  }

  // All of the operator's assets, or the chosen models of them: what is not served is neither loaded nor claimed.
  void add_assets(std::vector<os::Bind>& binds) {
    if (config_.models.empty()) {
      binds.push_back({.path = place_.assets});
      return;
    }
    for (const std::string& model : place_.models) binds.push_back({.path = place_.assets + "/models/" + model});
    std::error_code ignored;
    for (const char* also : {"/prompts", "/manifest", "/manifest.sig"})
      if (std::filesystem::exists(place_.assets + also, ignored)) binds.push_back({.path = place_.assets + also});
  }

  void add_arguments(const ProcessRow& row, const std::string& model, os::SandboxProfile& profile) {
    std::string_view name = row.process;
    auto add = [&](std::initializer_list<std::string> words) {
      profile.arguments.insert(profile.arguments.end(), words);
    };
    std::string threads =
        std::to_string(config_.threads != 0 ? config_.threads : std::max(1u, std::thread::hardware_concurrency()));
    if (name == "cloudboardd")
      add({"--listen", config_.listen, "--state-dir", place_.run + "/state/cloudboardd", "--prewarmed",
           std::to_string(config_.prewarmed_pairs), "--max-requests", std::to_string(config_.max_requests)});
    if (states_by_tpm(name)) add({"--tpm", config_.tpm});
    if (states_by_tpm(name) && name == "workload_servicesd")
      add({"--measurements", place_.run + "/state/workload_servicesd/measurements"});
    if (judges_tokens(name)) add({"--tokens", place_.run + "/tokens"});
    if (name == "token_spentd") add({"--state-dir", place_.run + "/state/token_spentd"});
    if (name == "tie-model-owner") add({"--assets", place_.assets, "--release-id", stage_.manifest().release_id()});
    if (name == "tie-model-owner" && !config_.assets_key.empty()) add({"--assets-key", config_.assets_key});
    if (name == "tie-model-owner" && !config_.kernels.empty()) add({"--kernels", config_.kernels});
    if (name == "workload_servicesd")
      add({"--release-manifest", place_.run + "/release/manifest", "--assets", place_.assets});
    if (name == "tie-model-owner" || name == "workload_servicesd") add({"--served", place_.run + "/served"});
    if (name == "tie-cloud-app")
      add({"--assets", app_assets_, "--runtime-dir", place_.run + "/runtime", "--kvxfer-dir", place_.run + "/kvxfer"});
    if (name == "cache_stored") add({"--capacity-mib", std::to_string(config_.cache_mib)});
    if (name == "tie-proxy") {
      add({"proxy", "--listen", config_.proxy, "--node", config_.listen});
      if (!place_.policy.empty()) add({"--policy", place_.policy});
    }
    if (name == "tie-controllerd") add({"--max-requests", std::to_string(config_.max_requests)});
    if (name == "tie-controllerd")
      for (const std::string& m : place_.models) add({"--probe", m + "=" + model_socket_path(place_.run, "probe", m)});
    if (row.life == Life::kPerModel) {
      std::string libexec = stage_.prefix() + "/libexec/tie/",
                  runtime = model_socket_path(place_.run, "runtime", model);
      add({"--", libexec + "afm-runtime", "--model", model, "--socket", runtime, "--owner-socket",
           model_socket_path(place_.run, "weights", model), "--kvxfer-socket",
           model_socket_path(place_.run, "kvxfer", model), "--threads", threads});
      if (!config_.kernels.empty()) add({"--kernels", config_.kernels});
      if (!config_.gpu_fast_kernels) add({"--gpu-portable-kernels"});
      add({"--", libexec + "tie-status-probe", "--model", model, "--runtime-socket", runtime, "--socket",
           model_socket_path(place_.run, "probe", model)});
    }
  }

  const NodeConfig& config_;
  const NodePlace& place_;
  Stage& stage_;
  NodePlan plan_;
  std::string app_assets_;
  GpuDriver gpu_;
};

}  // namespace

Result<NodePlan> plan_node(const NodeConfig& config, const NodePlace& place, Stage& stage) {
  return Planner(config, place, stage).plan();
}

}  // namespace tie::launcher
