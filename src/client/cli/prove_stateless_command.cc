#include "client/cli/prove_stateless_command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "client/cli/canary.h"
#include "client/cli/command.h"
#include "client/cli/terminal_text.h"
#include "controller.grpc.pb.h"
#include "inference.pb.h"
#include "supervision/launcher/node_config.h"
#include "supervision/launcher/run_directory.h"
#include "supervision/rpc/unix_grpc.h"
#include "supervision/stateless_proof/node_search.h"
#include "supervision/stateless_proof/planted_leak.h"

namespace tie::cli {
namespace {

constexpr int kFound = 1, kNothingProved = 3;
constexpr int kShortAnswerTokens = 8;
constexpr int64_t kNextKeyMs = 30'000, kIdleMs = 30'000, kRecycleMs = 20 * 60'000, kSettleMs = 500;
// What a search of a running request has to see, or it looks at the wrong places.
constexpr const char* kMustBeSeenInFlight[] = {"text (UTF-8)", "token ids (int32)", "K rows", "V rows"};
// Outside of its KV blocks, which are zeroed, a runtime may keep these until its recycle.
constexpr const char* kMayStayInTheRuntime[] = {"token ids (int32)", "token ids (int64)"};

struct Options {
  NodeFlags node;
  std::string run_dir, assets, model;
  std::vector<std::string> also;
  bool with_leak = false;
};

class Proof {
 public:
  explicit Proof(const Options& options) : options_(options) {}

  Result<int> run() {
    TIE_CHECK_OK(find_node());
    TIE_CHECK_OK(prepare_canary());
    TIE_CHECK_OK(look_at_a_request_in_flight());
    TIE_CHECK_OK(complete_a_request());
    TIE_TRY(auto search, proof::LeakSearch::create(forms()));
    TIE_CHECK_OK(prove_detectors(search));
    TIE_CHECK_OK(wait_until_idle());
    std::optional<proof::PlantedLeak> leak;
    if (options_.with_leak) {
      auto planted = proof::PlantedLeak::plant(search.forms(), planted_command(), planted_folder());
      if (!planted) return std::unexpected(std::move(planted.error()));
      leak.emplace(std::move(*planted));
    }
    bool clean = judge("after the requests", search, true);
    TIE_CHECK_OK(recycle());
    clean = judge("after the recycle", search, false) && clean;
    if (!complete_) return fail(Code::kNotReady, "some places could not be searched: nothing is proved");
    fmt::print("{}\n", clean ? "\nNothing of the canary is left." : "\nTHE NODE KEEPS PARTS OF A REQUEST.");
    return clean ? 0 : kFound;
  }

 private:
  Result<void> find_node() {
    if (::geteuid() != 0)
      return fail(Code::kPermissionDenied, "this reads the memory of every process of the node: run it as root (sudo)");
    TIE_TRY(run_, launcher::choose_run_directory(options_.run_dir));
    launcher_ = launcher::running_launcher(run_).value_or(0);
    auto processes = proof::node_processes(run_, launcher_);
    if (processes.empty()) return fail(Code::kNotReady, "no node runs in " + run_ + " (another one: --run-dir)");
    for (const proof::NodeProcess& process : processes)
      if (auto allowed = proof::may_search(process.pid); !allowed && allowed.error().code == Code::kPermissionDenied)
        return allowed;
    return {};
  }

  Result<void> prepare_canary() {
    client::SessionOptions session;
    session.node = options_.node.node;
    session.policy_path = options_.node.policy;
    session.dek_witness = [this](ByteView dek) { deks_.emplace_back(dek.begin(), dek.end()); };
    TIE_TRY(session_, client::Session::open(std::move(session)));
    TIE_TRY(auto node, session_->node_with_key(kNextKeyMs, [] {
      fmt::print("waiting      a key of the node has just died; it is making another\n");
      std::fflush(stdout);
    }));
    TIE_TRY(model_, choose_model(*node, options_.model));
    TIE_TRY(canary_,
            make_canary(options_.assets.empty() ? launcher::default_assets_folder() : options_.assets, model_));
    fmt::print("canary       {} random words, {} tokens, to {} at {}\n", canary_.words.size(), canary_.ids.size(),
               model_, options_.node.node);
    return {};
  }

  std::vector<proof::LeakForm> forms() const {
    auto out = proof::text_forms(canary_.words);
    for (proof::LeakForm& form : proof::token_forms(canary_.ids)) out.push_back(std::move(form));
    out.push_back(proof::key_form("request key (DEK)", deks_));
    out.push_back(proof::key_form("turn key", turn_keys_));
    out.push_back(proof::row_form("K rows", canary_.k_rows));
    out.push_back(proof::row_form("V rows", canary_.v_rows));
    return out;
  }

  proof::SearchReport search_node(const proof::LeakSearch& search, bool files) const {
    proof::NodeSearch looking(search);
    for (const proof::NodeProcess& process : proof::node_processes(run_, launcher_)) looking.search_process(process);
    if (files) {
      looking.search_folder(run_);
      if (launcher_ == 0)
        for (const char* folder : {"/var/lib/tie", "/var/log", "/run/log", "/tmp", "/var/tmp", "/dev/shm"})
          looking.search_folder(folder);
      for (const std::string& folder : options_.also) looking.search_folder(folder);
    }
    return looking.take_report();
  }

  // The control: while a request runs its content must be there, else a later silence would mean nothing.
  Result<void> look_at_a_request_in_flight() {
    auto cancel = std::make_shared<client::Cancellation>();
    auto answer = session_->ask(canary_request(canary_, model_, 0, turn_keys_), cancel);
    v1::InferenceEvent event;
    TIE_TRY(bool more, answer->next(event));
    if (!more) return fail(Code::kNotReady, "the canary was answered before it could be looked at");
    TIE_TRY(auto search, proof::LeakSearch::create(forms()));
    proof::SearchReport report = search_node(search, false);
    cancel->cancel();
    answer.reset();
    fmt::print("in flight    ");
    const char* separator = "";
    for (const proof::LeakForm& form : search.forms()) {
      std::set<std::string> owners;
      for (const proof::Find& one : report.finds)
        if (one.form == form.name) owners.insert(one.owner);
      std::string where;
      for (const std::string& owner : owners) where += (where.empty() ? "" : ", ") + owner;
      if (!where.empty()) fmt::print("{}{}: {}", std::exchange(separator, "\n             "), form.name, where);
    }
    fmt::print("\n");
    for (const char* form : kMustBeSeenInFlight)
      if (report.find(form) == nullptr)
        return fail(Code::kNotReady, std::string("a running request's ") + form + " are not seen: nothing is proved");
    return {};
  }

  Result<void> complete_a_request() {
    auto answer = session_->ask(canary_request(canary_, model_, kShortAnswerTokens, turn_keys_),
                                std::make_shared<client::Cancellation>());
    for (v1::InferenceEvent event;;) {
      TIE_TRY(bool more, answer->next(event));
      if (!more) return {};
    }
  }

  // Names the run directory, as a part of the node would.
  std::vector<std::string> planted_command() const { return {"/proc/self/exe", "node", "plant-leak", run_ + "/leak"}; }
  std::string planted_folder() const { return run_ + "/proof-" + random_hex(8); }

  Result<void> prove_detectors(const proof::LeakSearch& search) {
    TIE_TRY(auto silent, proof::silent_detectors(search, planted_command(), planted_folder()));
    if (!silent.empty())
      return fail(Code::kNotReady, "a detector is silent before its planted leak: " + silent.front());
    fmt::print(
        "detectors    all {} found the leak of their form that was planted in memory, in a memfd and in a file\n",
        search.forms().size());
    return {};
  }

  Result<std::unique_ptr<v1::Controller::Stub>> controller() const {
    TIE_TRY(auto channel, rpc::connect(launcher::socket_path(run_, "controller"), Deadline::in_ms(2'000)));
    return v1::Controller::NewStub(channel);
  }

  Result<void> wait_until_idle() {
    TIE_TRY(auto stub, controller());
    for (Deadline deadline = Deadline::in_ms(kIdleMs); !deadline.passed();) {
      grpc::ClientContext context;
      context.set_deadline(rpc::call_deadline(5'000));
      v1::NodeStatus status;
      if (auto called = stub->GetStatus(&context, {}, &status); !called.ok())
        return std::unexpected(rpc::to_error(called));
      std::this_thread::sleep_for(std::chrono::milliseconds(kSettleMs));
      if (status.in_flight() == 0) return {};
    }
    return fail(Code::kDeadline, "requests of others are in flight: try again on a drained node");
  }

  Result<void> recycle() {
    TIE_TRY(auto stub, controller());
    grpc::ClientContext context;
    context.set_deadline(rpc::call_deadline(kRecycleMs));
    v1::NodeRecycleRequest request;
    request.set_reason("prove-stateless");
    v1::NodeStatus status;
    if (auto called = stub->Recycle(&context, request, &status); !called.ok())
      return std::unexpected(rpc::to_error(called));
    fmt::print("recycled     in {} ms\n", status.last_recycle_ms());
    return {};
  }

  static bool may_stay(const proof::Find& one) {
    for (const char* form : kMayStayInTheRuntime)
      if (one.form == form && one.owner == "afm-runtime") return true;
    return false;
  }

  // Searches everything and prints it; whether nothing was found that must not be there.
  bool judge(const char* when, const proof::LeakSearch& search, bool before_recycle) {
    proof::SearchReport report = search_node(search, true);
    fmt::print("{}: searched {} ({} MB of memory), {} ({} MB), {} ({} MB)\n", when,
               counted(report.processes, "process"), report.memory_bytes >> 20, counted(report.memfds, "memfd"),
               report.memfd_bytes >> 20, counted(report.files, "file"), report.file_bytes >> 20);
    if (report.secret_pages > 0)
      fmt::print("  {} of memfd_secret, which the kernel lets nobody read\n", counted(report.secret_pages, "page"));
    for (const std::string& place : report.unreadable) {
      fmt::print("  NOT SEARCHED: {}\n", place);
      complete_ = false;
    }
    bool clean = true;
    for (const proof::LeakForm& form : search.forms()) {
      size_t finds = 0;
      for (const proof::Find& one : report.finds) {
        if (one.form != form.name) continue;
        bool allowed = before_recycle && may_stay(one);
        fmt::print("  {:<22} {} in {} ({})\n", form.name, allowed ? "until the recycle" : "FOUND", one.place,
                   counted(one.times, "time"));
        clean = clean && allowed;
        ++finds;
      }
      if (finds == 0) fmt::print("  {:<22} not found\n", form.name);
    }
    return clean;
  }

  const Options& options_;
  std::string run_, model_;
  pid_t launcher_ = 0;
  std::shared_ptr<client::Session> session_;
  CanaryContent canary_;
  std::vector<Bytes> deks_, turn_keys_;
  bool complete_ = true;
};

int prove(const Options& options) {
  auto outcome = Proof(options).run();
  if (outcome) return *outcome;
  fmt::print(stderr, "tie node prove-stateless: {}\n", outcome.error().message);
  return kNothingProved;
}

}  // namespace

void add_prove_stateless_command(CLI::App& node, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* prove_command = node.add_subcommand(
      "prove-stateless",
      "send canary requests, recycle, and search memory, memfds and files for what they left (root)");
  add_node_flags(*prove_command, options->node);
  prove_command->add_option("--run-dir", options->run_dir, "the node's run directory, if it was not the default");
  prove_command->add_option("--assets", options->assets, "asset folder")->envname("TIE_ASSETS");
  prove_command->add_option("--model", options->model, "model to ask (default: the node's first)");
  prove_command->add_option("--also", options->also, "a further folder to search");
  prove_command->callback([options, &exit_code] { exit_code = prove(*options); });
  prove_command->add_flag("--with-leak", options->with_leak,
                          "leave a planted leak beside the node: the search must find every form of it and fail");
  // What the proof starts beside itself; not for a person.
  CLI::App* planted = node.add_subcommand("plant-leak", "")->group("");
  planted->add_option("place");
  planted->callback([&exit_code] { exit_code = proof::run_planted_leak(); });
}

}  // namespace tie::cli
