// What the user's commands of `tie` share: flags, errors with a next step, exit codes. Called by the command files of
// this folder and main. One thread. Nothing here prints a user's text except on standard output.
#pragma once
#include <memory>
#include <string>

#include "base/result.h"
#include "client/session/session.h"

namespace CLI {
class App;
}

namespace tie::cli {

enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitNotReady = 3,       // no node answers, or it is not ready
  kExitRefused = 4,        // the policy refuses the node
  kExitCut = 5,            // the answer ended without its authenticated end
  kExitInterrupted = 130,  // Ctrl-C
};
extern const char* const kExitCodesHelp;

// --node and --policy, for every command that talks to a node.
struct NodeFlags {
  std::string node = "127.0.0.1:8443";
  std::string policy;
  std::string token_issuer, token_key_file;  // for nodes that ask for one-time tokens
  std::string credential_file;               // sent with every request, in clear; empty: none
  size_t token_batch = 16;                   // fetched ahead; 0 for a command that asks once
};
void add_node_flags(CLI::App& command, NodeFlags& flags);

Result<std::shared_ptr<client::Session>> open_session(const NodeFlags& flags);
// The model to use: `wanted`, else the node's only one, else its first. kModelNotFound names those that exist.
Result<std::string> choose_model(const client::VerifiedNode& node, const std::string& wanted);

// "tie: …" on standard error, with what to do next; the exit code for it.
int report(const Error& error);

// Each adds its subcommands to `app` and leaves the exit code of the one that ran in `exit_code`, which must outlive
// `app`.
void add_ask_commands(CLI::App& app, int& exit_code);         // ask, chat
void add_node_facts_commands(CLI::App& app, int& exit_code);  // keys, models
void add_policy_commands(CLI::App& app, int& exit_code);      // policy show, pin
void add_proxy_command(CLI::App& app, int& exit_code);
void add_issuer_commands(CLI::App& app, int& exit_code);  // issuer init, key, credential, serve
void add_model_commands(CLI::App& app, int& exit_code);   // model add, list, remove, verify

}  // namespace tie::cli
