// What an operator may set about a node in the embedded profile: defaults here, then /etc/tie/node.toml or `--config`,
// then flags. Unknown keys are errors, because a misspelt limit would otherwise be no limit. Pure data and one reader;
// no threads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tie::launcher {

struct NodeConfig {
  std::string listen = "127.0.0.1:8443";  // cloudboardd's public gRPC port
  std::string assets;                     // folder with models/NAME/...; empty: default_assets_folder()
  std::string assets_key;                 // public key of the operator: only assets that it has signed are served
  std::vector<std::string> models;        // empty: every model of the assets
  std::string run_dir;                    // empty: chosen, see run_directory.h
  std::string token_issuer;               // file of `tie issuer`: one-time tokens are on; empty: off (docs/tokens.md)
  std::string tpm;  // device or swtpm socket: evidence is of kind tpm; empty: software evidence, "unattested"
  std::string proxy = "127.0.0.1:8123";  // the user's side: the OpenAI-compatible proxy; "none": not started
  uint32_t cache_mib = 1024;             // ciphertext of conversations, in memory
  uint32_t prewarmed_pairs = 3;
  uint32_t max_requests = 32;    // admitted at once by cloudboardd
  uint32_t max_instances = 64;   // of each per-request program
  uint32_t threads = 0;          // of the runtime; 0: one per CPU
  std::string kernels;           // kernel set of the runtime; empty: the fastest that this CPU runs
  std::string gpu_driver_root;   // folder of a GPU driver that is not the system's; empty: the system's (gpu_access.h)
  bool gpu_fast_kernels = true;  // of models on a GPU; false: its own matrix units are left alone
  uint32_t startup_timeout_s = 60;  // until the node is ready
  uint32_t drain_timeout_s = 20;    // for requests in flight when the node stops
  std::string sandbox =
      "auto";  // "direct" (the node's own launcher), "bubblewrap", or the first of these that works here
  bool insecure_no_sandbox = false;  // shown everywhere it matters
  bool raw_logs = false;  // write every line of every process to the log, also those that may hold a user's text
};

constexpr uint32_t kMaxPrewarmedPairs = 64;
constexpr uint32_t kMaxInstances = 1024;
constexpr uint32_t kMaxCacheMib = 1 << 20;
constexpr uint32_t kMaxThreads = 256;
constexpr uint32_t kMaxTimeoutS = 24 * 3600;
constexpr size_t kMaxConfigBytes = 64 * 1024;

// Lays the file's values over `config`. Errors name file, line and key: kNotFound, kBadRequest.
Result<void> read_node_config(const std::string& path, NodeConfig& config);
// The whole configuration as it will be used; kBadRequest with the first thing that cannot be.
Result<void> check_node_config(const NodeConfig& config);

// $TIE_ASSETS, else /var/lib/tie/assets where it exists, else ~/.local/share/tie/assets.
std::string default_assets_folder();
// The names of models in the assets that are complete enough to serve, sorted. kNotFound with how to add one when there
// is none.
Result<std::vector<std::string>> served_models(const NodeConfig& config);

// Letters, digits, '-', '_', '.'; 1 to 48 bytes; not starting with a dot: it becomes part of socket paths.
bool is_model_name(std::string_view name);

}  // namespace tie::launcher
