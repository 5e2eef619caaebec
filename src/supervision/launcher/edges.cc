#include "supervision/launcher/edges.h"

#include <cstring>

namespace tie::launcher {

std::span<const ProcessRow> process_table() {
  static const std::vector<ProcessRow> table = {
      {"key_protectiond", Life::kDaemon, {{"kps", "--socket"}}, {}, {}},
      {"gpuhealthd", Life::kDaemon, {{"gpuhealth", "--socket"}}, {}, {}},
      {"tie-model-owner", Life::kDaemon, {{"owner", "--socket"}, {"weights", "--model-sockets"}}, {}, {}},
      {"cache_stored", Life::kDaemon, {{"cache", "--socket"}}, {}, {}},
      {"cloudboardd",
       Life::kDaemon,
       {{"cloudboard-control", "--control-socket"}},
       {{"cb_jobhelper", "--jobhelper-socket"},
        {"wsd-authorize", "--authorize-socket"},
        {"wsd-claims", "--claims-socket"},
        {"cache", "--cache-socket"}},
       {}},
      {"workload_servicesd",
       Life::kDaemon,
       {{"wsd-decap", "--decap-socket"},
        {"wsd-authorize", "--authorize-socket"},
        {"wsd-claims", "--claims-socket"},
        {"wsd-operator", "--operator-socket"}},
       {{"kps", "--kps-socket"}, {"cloudboard-control", "--control-socket"}},
       {"key_protectiond", "cloudboardd"}},
      {"afm-runtime",
       Life::kPerModel,
       {{"runtime", nullptr}, {"probe", nullptr}, {"kvxfer", nullptr}},
       {{"weights", nullptr}},
       {"tie-model-owner"}},
      {"tie-controllerd",
       Life::kDaemon,
       {{"controller", "--socket"}},
       {{"cloudboard-control", "--control-socket"},
        {"gpuhealth", "--gpuhealth-socket"},
        {"owner", "--owner-socket"},
        {"probe", nullptr}},
       {"cloudboardd", "gpuhealthd", "tie-model-owner"}},
      // With one-time tokens on.
      {"token_spentd", Life::kDaemon, {{"token-spend", "--socket"}}, {}, {}},
      // The user's side, on the user's own machine: it meets the node only on the public port.
      {"tie-proxy", Life::kDaemon, {}, {}, {"tie-controllerd", "workload_servicesd"}},
      {"cb_jobhelper",
       Life::kPerRequest,
       {},
       {{"tie_cloud_app", "--app-socket"}, {"wsd-decap", "--decap-socket"}, {"token-spend", "--spend-socket"}},
       {}},
      {"tie-cloud-app", Life::kPerRequest, {}, {{"runtime", nullptr}, {"kvxfer", nullptr}}, {}},
  };
  return table;
}

const ProcessRow* find_process(std::string_view name) {
  for (const ProcessRow& row : process_table())
    if (name == row.process) return &row;
  return nullptr;
}

bool is_model_socket(std::string_view socket) {
  return socket == "runtime" || socket == "probe" || socket == "kvxfer" || socket == "weights";
}

}  // namespace tie::launcher
