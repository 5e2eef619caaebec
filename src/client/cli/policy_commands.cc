// `tie policy show` and `tie policy pin`: which releases this user trusts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "client/cli/command.h"
#include "keys/attestation/policy.h"
#include "os/fd.h"

namespace tie::cli {
namespace {

int show(const std::string& given) {
  auto path = client::find_policy(given);
  if (!path) return report(path.error());
  auto policy = attestation::load_policy(*path);
  if (!policy) return report(policy.error());
  fmt::print("# {}\n{}", *path, attestation::render_policy(*policy));
  return kExitOk;
}

struct PinOptions {
  NodeFlags node;
  std::vector<std::string> releases;
  bool from_node = false;
};

Result<std::string> release_of_node(const std::string& address) {
  auto session = client::Session::open_with({.node = address}, client::no_policy_verifier());
  TIE_TRY(client::Inspection seen, session->inspect());
  if (seen.claimed.release_id_hex.empty()) return fail(Code::kCorrupt, "the node states no release");
  return seen.claimed.release_id_hex;
}

// The user's own policy; it begins as a copy of the one in force, so that pinning adds and never forgets.
Result<std::string> pin(const PinOptions& o) {
  std::string path = o.node.policy.empty() ? client::policy_places().front() : o.node.policy;
  attestation::Policy policy{.accepted_kinds = {"software"}};
  if (auto found = client::find_policy(o.node.policy)) {
    TIE_TRY(policy, attestation::load_policy(*found));
  }
  std::vector<std::string> releases = o.releases;
  if (o.from_node) {
    TIE_TRY(std::string release, release_of_node(o.node.node));
    releases.push_back(release);
  }
  if (releases.empty())
    return fail(Code::kBadRequest,
                "nothing to pin: give --release HEX (from `tie release measure` of a build you trust), or --from-node");
  for (const std::string& hex : releases) {
    TIE_TRY(Bytes bytes, from_hex(hex));
    TIE_TRY(crypto::Digest digest, crypto::digest_from(bytes, "a release id"));
    if (std::find(policy.release_ids.begin(), policy.release_ids.end(), digest) == policy.release_ids.end())
      policy.release_ids.push_back(digest);
    fmt::print("pinned {}\n", hex);
  }
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  TIE_CHECK_OK(os::write_file_atomic(path, as_bytes(attestation::render_policy(policy))));
  return path;
}

int run_pin(const PinOptions& o) {
  auto written = pin(o);
  if (!written) return report(written.error());
  fmt::print("written to {}\n", *written);
  if (o.from_node) {
    fmt::print(stderr,
               "NOTE: this trusts what the node said of itself just now. Compare the id with `tie release measure` of "
               "a build that you trust.\n");
  }
  return kExitOk;
}

}  // namespace

void add_policy_commands(CLI::App& app, int& exit_code) {
  CLI::App* policy = app.add_subcommand("policy", "show or extend the list of releases that you trust");
  policy->require_subcommand(1);

  auto path = std::make_shared<std::string>();
  CLI::App* show_command = policy->add_subcommand("show", "print the policy in force and where it lies");
  show_command->add_option("--policy", *path, "another policy file")->envname("TIE_POLICY");
  show_command->callback([path, &exit_code] { exit_code = show(*path); });

  auto o = std::make_shared<PinOptions>();
  CLI::App* pin_command =
      policy->add_subcommand("pin", "trust a release from now on (writes ~/.config/tie/policy.toml)");
  add_node_flags(*pin_command, o->node);
  pin_command->add_option("--release", o->releases, "release id, 64 hex digits; may be repeated");
  pin_command->add_flag("--from-node", o->from_node,
                        "take the id from the running node: trust on first use, only when nothing better is at hand");
  pin_command->callback([o, &exit_code] { exit_code = run_pin(*o); });
}

}  // namespace tie::cli
