// afm-runtime: flags, hardening, weights from the owner, then serving until SIGTERM and a drain.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <string>
#include <thread>

#include "inference/bones/model.h"
#include "inference/engine/engine_core.h"
#include "inference/hosts/server/gpu_model.h"
#include "inference/hosts/server/gpu_ranks.h"
#include "inference/hosts/server/grammar_engine.h"
#include "inference/hosts/server/kvxfer_service.h"
#include "inference/hosts/server/limits.h"
#include "inference/hosts/server/prefix_cache.h"
#include "inference/hosts/server/rank_processes.h"
#include "inference/hosts/server/runtime_server.h"
#include "inference/hosts/server/vocab_table.h"
#include "inference/hosts/server/weights_source.h"
#include "os/end_note.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "os/unix_socket.h"

namespace {

using namespace tie;

constexpr int64_t kIdleWaitMs = 3'600'000;
constexpr int64_t kPrefixWatchMs = 500;

struct Flags {
  std::string model, socket, owner_socket, kvxfer_socket, weights, tokenizer, kernels, kv_cache;
  uint32_t threads = 0, max_batch = 64, kv_mib = 512, max_rows = 512;
  runtime_host::GpuFlags gpu;
  int64_t attach_deadline_ms = 60'000, drain_limit_ms = 15 * 60 * 1000;
};

struct LoadedModel {
  runtime_host::AttachedModel memory;
  std::unique_ptr<bones::ThreadPool> pool;
  std::unique_ptr<engine::ForwardModel> model;
  std::unique_ptr<runtime_host::GrammarEngine> grammars;
  bones::KvType kv_type = bones::KvType::kF16;
};

// What the operator asked for, else what the model usually gets; in GPU memory that is f16.
Result<bones::KvType> kv_type_of(const Flags& flags, const LoadedModel& loaded) {
  const std::string& asked = flags.kv_cache.empty() ? loaded.memory.kv_cache : flags.kv_cache;
  if (!asked.empty()) return bones::kv_type_named(asked);
  return loaded.memory.gpu ? bones::KvType::kF16 : bones::usual_kv_type(loaded.model->config());
}

Result<LoadedModel> load(const Flags& flags, int stop_fd, os::EndStep& step) {
  LoadedModel out;
  if (flags.weights.empty()) {
    TIE_TRY(out.memory, runtime_host::attach_from_owner(flags.owner_socket, flags.model,
                                                        Deadline::in_ms(flags.attach_deadline_ms), stop_fd));
  } else {
    TIE_TRY(out.memory, runtime_host::attach_from_files(flags.weights, flags.tokenizer));
  }
  step = os::EndStep::kLoadingModel;
  uint32_t threads = flags.threads ? flags.threads : std::max(1u, std::min(std::thread::hardware_concurrency(), 256u));
  threads = std::max(1u, threads / out.memory.grid.count());  // the ranks share the CPUs
  out.pool = std::make_unique<bones::ThreadPool>(runtime_host::pool_of_rank(0, threads, out.memory.grid.count()));
  bones::ModelOptions options{.pool = out.pool.get(),
                              .kernels = flags.kernels,
                              .max_batch_rows = flags.max_rows,
                              .max_logit_rows = flags.max_batch + engine::kMaxDraftTokens,
                              .max_sequences = flags.max_batch};
  const bones::cuda::CudaModelOptions gpu_limits{.max_batch_rows = options.max_batch_rows,
                                                 .max_logit_rows = options.max_logit_rows,
                                                 .max_sequences = options.max_sequences,
                                                 .fast_kernels = !flags.gpu.portable && out.memory.gpu_fast_kernels};
  if (out.memory.gpu && out.memory.grid.alone()) {
    TIE_TRY(out.model, runtime_host::GpuModel::attach(out.memory, flags.gpu, gpu_limits));
    return out;
  }
  if (out.memory.gpu) {
    TIE_TRY(out.model, runtime_host::GpuRankedModel::start(out.memory, flags.gpu, gpu_limits));
    return out;
  }
  if (!out.memory.grid.alone()) {
    TIE_TRY(out.model, runtime_host::RankedModel::start(out.memory, options, size_t{flags.kv_mib} << 20));
    return out;
  }
  TIE_TRY(auto model, bones::Model::attach(out.memory.weights.bytes(), options));
  out.model = std::make_unique<engine::BonesModel>(std::move(model));
  return out;
}

// SIGUSR1, from the probe: warm the prefix cache. Blocked from here on, like the termination signals; call before any
// thread starts.
Result<os::Fd> warm_up_signal_fd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  if (int error = ::pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) return fail_errno("blocking signals", error);
  os::Fd fd(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd) return fail_errno("signalfd", errno);
  return fd;
}

Result<runtime_host::PrefixContext> prefix_context(const Flags& flags, const LoadedModel& loaded) {
  runtime_host::PrefixContext context{flags.owner_socket,       flags.model, loaded.memory.model_id,
                                      loaded.memory.release_id, {},          {}};
  context.kv_order = loaded.model->kv_order();
  engine::EngineOptions defaults;
  TIE_TRY(context.layout, bones::KvLayout::for_model(loaded.model->config(), loaded.kv_type, defaults.block_tokens));
  context.grid = loaded.memory.grid;
  TIE_TRY(context.shards, runtime_host::KvShards::of(loaded.model->config(), context.grid, context.layout));
  return context;
}

// Waits to be told, computes and seals the prompts' blocks. The caller ends then: the instance that warmed the pool
// does not serve.
Result<void> warm_up(const Flags& flags, const runtime_host::PrefixContext& context, LoadedModel& loaded,
                     runtime_host::RuntimeServer& server, int stop_fd, int warm_fd, os::EndStep& step) {
  step = os::EndStep::kStopped;
  server.set_not_ready("needs_warmup");
  os::notify_ready();
  pollfd polls[2] = {{stop_fd, POLLIN, 0}, {warm_fd, POLLIN, 0}};
  while (::poll(polls, 2, -1) < 0 && errno == EINTR) {
  }
  if (polls[0].revents != 0) return {};
  step = os::EndStep::kWarmingPrefix;
  server.set_not_ready("warming the prefix cache");
  int64_t began_ms = monotonic_ms();
  TIE_CHECK_OK(runtime_host::warm_prefix(context, *loaded.model, flags.max_rows));
  TIE_LOG("afm-runtime", "prefix cache warm after {} ms", monotonic_ms() - began_ms);
  step = os::EndStep::kWarmed;
  return {};
}

Result<std::unique_ptr<engine::EngineCore>> make_core(const Flags& flags, LoadedModel& loaded,
                                                      engine::PrefixSource* prefix) {
  auto image = loaded.memory.tokenizer.bytes();
  TIE_TRY(auto vocab, text::Vocab::open({reinterpret_cast<const uint8_t*>(image.data()), image.size()}));
  TIE_TRY(auto table, runtime_host::token_table(vocab));
  loaded.grammars = std::make_unique<runtime_host::GrammarEngine>(vocab);
  engine::EngineOptions options;
  options.grammars = loaded.grammars.get();
  options.limits.max_rows = flags.max_rows;
  options.limits.max_sequences = flags.max_batch;
  options.kv_bytes = size_t{flags.kv_mib} << 20;
  options.kv_type = loaded.kv_type;
  options.pool = loaded.pool.get();
  options.prefix = prefix;
  return engine::EngineCore::create(*loaded.model, std::move(table), std::move(options));
}

// Listens before the model is there, because apps that wait warm connect as soon as runtime.sock answers them.
Result<os::Fd> listen_kvxfer(const Flags& flags) {
  if (flags.kvxfer_socket.empty()) return os::Fd();
  return os::listen_unix(flags.kvxfer_socket);
}

Result<std::unique_ptr<runtime_host::KvxferService>> start_kvxfer(os::Fd listener,
                                                                  const runtime_host::PrefixContext& own,
                                                                  uint32_t context) {
  if (!listener) return nullptr;
  cache::KvDescription description{.model_id = own.model_id,
                                   .release_id = own.release_id,
                                   .layout_id = own.layout_id(),
                                   .block_count = own.layout.blocks_for(context),
                                   .block_tokens = own.layout.block_tokens,
                                   .block_bytes = own.layout.block_bytes()};
  return runtime_host::KvxferService::start(std::move(listener), description);
}

// `step` is what the runtime is at, for the note of its end.
Result<void> run(const Flags& flags, os::EndStep& step) {
  int64_t began_ms = monotonic_ms();
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(os::Fd stop, os::termination_signal_fd());
  TIE_TRY(os::Fd warm_signal, warm_up_signal_fd());
  TIE_TRY(os::Fd kvxfer_listener, listen_kvxfer(flags));
  std::unique_ptr<runtime_host::KvxferService> kvxfer;  // outlives the server
  TIE_TRY(auto server, runtime_host::RuntimeServer::start(flags.model, flags.socket));
  step = os::EndStep::kAttachingModel;
  auto loaded = load(flags, stop.get(), step);
  if (!loaded) {
    if (loaded.error().code == Code::kCancelled) {
      step = os::EndStep::kStopped;
      return {};
    }
    return std::unexpected(std::move(loaded.error()));
  }
  step = os::EndStep::kRestoringPrefix;
  runtime_host::PrefixStart prefix;
  TIE_TRY(loaded->kv_type, kv_type_of(flags, *loaded));
  TIE_TRY(auto context_of_prefix, prefix_context(flags, *loaded));
  if (!flags.owner_socket.empty()) {
    TIE_TRY(prefix, runtime_host::start_prefix(context_of_prefix));
  }
  if (prefix.state == runtime_host::PrefixState::kCold)
    return warm_up(flags, context_of_prefix, *loaded, *server, stop.get(), warm_signal.get(), step);
  step = os::EndStep::kStartingEngine;
  TIE_TRY(auto core, make_core(flags, *loaded, prefix.source.get()));
  uint32_t context = core->context();
  TIE_TRY(kvxfer, start_kvxfer(std::move(kvxfer_listener), context_of_prefix, context));
  server->serve(std::move(core), kvxfer.get(), runtime_host::RegisteredPrompts(std::move(prefix.prompts)));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  os::notify_ready();
  step = os::EndStep::kServing;
  TIE_LOG("afm-runtime", "ready after {} ms: {} kernels, {} threads, {} KV, context of {} tokens",
          monotonic_ms() - began_ms, os::LogWord(loaded->model->kernels()), loaded->pool->size(),
          os::LogWord(bones::kv_type_name(loaded->kv_type)), context);
  if (loaded->memory.gpu && (flags.gpu.portable || !loaded->memory.gpu_fast_kernels))
    TIE_LOG("afm-runtime", "the GPU's own matrix units are left alone, as configured");
  if (const std::string_view note = bones::kernel_set_note(); !note.empty())
    TIE_LOG("afm-runtime", "the kernel set amx is not used: {}", os::LogWord(note));
  if (prefix.source != nullptr)
    TIE_LOG("afm-runtime", "{} system prompts restored without a forward pass", prefix.source->prompt_count());
  loaded->grammars->prepare();  // while nobody waits for it
  bool corrupt = false;
  const bool watches = prefix.source != nullptr || !loaded->memory.grid.alone() || loaded->memory.gpu.has_value();
  while (!corrupt && !loaded->model->lost() &&
         !os::wait_readable(stop.get(), Deadline::in_ms(watches ? kPrefixWatchMs : kIdleWaitMs)))
    corrupt = prefix.source != nullptr && prefix.source->corrupt();
  if (corrupt) {
    // A sealed block changed after all: what is in flight goes on without it, the next instance warms anew.
    TIE_LOG("afm-runtime", "a block of the prefix pool fails its digest; the pool is discarded");
    runtime_host::discard_prefix(context_of_prefix);
  }
  step = corrupt ? os::EndStep::kDiscardingPrefix : os::EndStep::kStopped;
  if (loaded->model->lost()) step = os::EndStep::kLosingRank;
  if (loaded->model->lost()) return fail(Code::kRuntimeLost, "a rank of the model, or its GPU, is lost");
  TIE_LOG("afm-runtime", "draining");
  server->drain(Deadline::in_ms(flags.drain_limit_ms));
  if (kvxfer != nullptr) kvxfer->wait_quiet(Deadline::in_ms(runtime_host::kExportDrainMs));
  server.reset();  // before the model and its memory
  TIE_LOG("afm-runtime", "stopped");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == runtime_host::kRankArgument) return runtime_host::rank_main(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == runtime_host::kGpuRankArgument)
    return runtime_host::gpu_rank_main(argc, argv);
  Flags flags;
  CLI::App app{"The inference runtime of one model, behind Triton's gRPC interface on a unix socket."};
  app.add_option("--model", flags.model, "name of the served model")->required();
  app.add_option("--socket", flags.socket, "runtime.sock to serve")->required();
  auto* owner = app.add_option("--owner-socket", flags.owner_socket, "weights.sock of this model at tie-model-owner");
  app.add_option("--kvxfer-socket", flags.kvxfer_socket,
                 "kvxfer.sock to serve; without it nothing is taken over between turns");
  auto* weights =
      app.add_option("--weights", flags.weights, "instead of an owner: a packed weights image")->excludes(owner);
  app.add_option("--tokenizer", flags.tokenizer, "with --weights: the vocabulary image")->needs(weights);
  app.add_option("--threads", flags.threads, "compute threads (default: one for each CPU)")->check(CLI::Range(1, 256));
  app.add_option("--max-batch", flags.max_batch, "most sequences computed at once")->check(CLI::Range(1, 1024));
  app.add_option("--max-rows", flags.max_rows, "most tokens in one forward pass")->check(CLI::Range(16, 65536));
  app.add_option("--kv-cache", flags.kv_cache, "keys and values: f16, bf16 or q8 (default: model.toml's, else q8)");
  app.add_option("--kv-mib", flags.kv_mib, "memory for keys and values")->check(CLI::Range(1, 1 << 20));
  app.add_option("--kernels", flags.kernels, "kernel set; default: the best this CPU has");
  app.add_option("--gpu-kernels", flags.gpu.kernels, "for a model on a GPU: its kernels (default: PREFIX/lib/tie)");
  app.add_flag("--gpu-portable-kernels", flags.gpu.portable,
               "for a model on a GPU: leave its own matrix units alone (as gpu_fast_kernels = false in model.toml)");
  app.add_option("--cuda-driver", flags.gpu.driver, "for a model on a GPU: the CUDA driver's library");
  app.add_option("--nccl", flags.gpu.nccl, "for a model on several GPUs: NCCL's library");
  app.add_option("--attach-deadline-ms", flags.attach_deadline_ms, "how long to wait for the owner")
      ->check(CLI::Range(100, 600'000));
  app.add_option("--drain-limit-ms", flags.drain_limit_ms, "how long requests in flight may take after SIGTERM")
      ->check(CLI::Range(0, 86'400'000));
  CLI11_PARSE(app, argc, argv);
  if (flags.owner_socket.empty() && (flags.weights.empty() || flags.tokenizer.empty())) {
    std::fprintf(stderr, "afm-runtime: give --owner-socket, or --weights and --tokenizer\n");
    return 2;
  }
  auto note = os::EndNote::create(os::end_note_path(flags.socket));
  auto step = os::EndStep::kStarting;
  auto outcome = run(flags, step);
  Code code = outcome ? Code::kOk : outcome.error().code;
  if (note) note->write(step, code);
  if (outcome) return 0;
  // The sentence is for the terminal of a start; the operator's log keeps lines of this program's formats alone.
  std::fprintf(stderr, "afm-runtime: %s\n", outcome.error().message.c_str());
  TIE_LOG("afm-runtime", "ends with {} while {}", code, os::LogWord(os::end_step_info(step).word));
  return 1;
}
