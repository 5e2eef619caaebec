// tie-model-owner: flags, hardening, one loading thread, the socket.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <thread>

#include "cache/prefix/pool_owner.h"
#include "cache/prefix/system_prompts.h"
#include "inference/bones/kernel_check.h"
#include "inference/bones/model.h"
#include "inference/bones/thread_pool.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "os/unix_socket.h"
#include "supervision/model_owner/gpu_weights.h"
#include "supervision/model_owner/owner_server.h"
#include "supervision/model_owner/served_version.h"
#include "supervision/signed_assets/asset_manifest.h"

namespace {

using namespace tie;

struct Flags {
  std::string socket, model_sockets, served, assets, kernels, release_id, assets_key;
  unsigned threads = 0;
  int64_t watch_ms = 3'000;
  owner::GpuOptions gpu;
};

int give_up(const Error& error) {
  TIE_LOG("tie-model-owner", "ends with {}", error.code);
  std::fprintf(stderr, "tie-model-owner: %s\n", error.message.c_str());
  return 1;
}

// What was loaded is what the operator signed: the digests are those of the bytes in memory, not of a second look.
Result<void> check_signed(const assets::AssetManifest& manifest, const owner::LoadedModel& model) {
  std::string folder = "models/" + model.name + "/";
  TIE_CHECK_OK(manifest.check(folder + owner::kWeightsFile, model.digests.weights));
  TIE_CHECK_OK(manifest.check(folder + owner::kTokenizerFile, model.digests.tokenizer));
  if (!manifest.files().contains(folder + owner::kTemplateFile) &&
      model.digests.chat_template == crypto::sha256(ByteView{}))
    return {};  // none, and none was signed
  return manifest.check(folder + owner::kTemplateFile, model.digests.chat_template);
}

Result<owner::LoadedModel> load_with_prompts(const std::string& name, const std::string& folder, const Flags& flags,
                                             const Bytes& assets_key, const crypto::Digest& release, unsigned threads,
                                             owner::GpuHost& gpu) {
  bones::ThreadPool pool({.n_threads = threads});
  TIE_TRY(owner::LoadedModel model, owner::load_model(name, folder, &pool, &gpu));
  std::optional<assets::AssetManifest> manifest;
  if (!assets_key.empty()) {
    TIE_TRY(manifest, assets::AssetManifest::open_signed(flags.assets, assets_key));
    TIE_CHECK_OK(check_signed(*manifest, model));
  }
  auto accept = [&](const std::string& file, ByteView bytes) -> Result<void> {
    return manifest ? manifest->check("prompts/" + file, crypto::sha256(bytes)) : Result<void>();
  };
  TIE_TRY(auto prompts, prefix::read_prompts(flags.assets, name, accept));
  model.pool = std::make_shared<prefix::PoolOwner>(prefix::PoolIdentity{model.model_id, release}, std::move(prompts),
                                                   model.grid.count());
  // Before it is handed out: a runtime that starts in between is recycled for the new version at once.
  if (!flags.served.empty())
    TIE_CHECK_OK(owner::write_served(flags.served, name,
                                     {model.model_id, model.digests.tokenizer, model.digests.chat_template}));
  return model;
}

// An update of the assets is seen on disk; the controller notices what is handed out and recycles the runtimes.
void watch_assets(owner::ModelStore& store, int quit_fd, int64_t watch_ms) {
  if (watch_ms <= 0) return;
  while (!os::wait_readable(quit_fd, Deadline::in_ms(watch_ms)))
    if (store.refresh()) TIE_LOG("tie-model-owner", "the assets have changed: {} models", store.rows().size());
}

void load_all(owner::ModelStore& store) {
  store.load();
  for (const owner::ModelRow& row : store.rows()) {
    if (row.loaded != nullptr) {
      TIE_LOG("tie-model-owner", "{} ready in {} ms, {} MB packed", os::LogWord(row.name), row.loaded->load_ms,
              row.loaded->weights_bytes >> 20);
    } else if (row.state == owner::LoadState::kError) {
      TIE_LOG("tie-model-owner", "{} cannot be loaded: {}", os::LogWord(row.name), row.code);
      std::fprintf(stderr, "tie-model-owner: %s: %s\n", row.name.c_str(), row.message.c_str());
    }
  }
}

Result<void> serve(const Flags& flags) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(os::Fd stop, os::termination_signal_fd());
  TIE_CHECK_OK(bones::check_kernel_set(flags.kernels));
  owner::OwnerServerOptions options;
  TIE_TRY(options.release_id, from_hex(flags.release_id));
  crypto::Digest release{};
  if (!options.release_id.empty()) {
    TIE_TRY(release, crypto::digest_from(options.release_id, "release id"));
  }
  Bytes assets_key;
  if (!flags.assets_key.empty()) {
    TIE_TRY(assets_key, assets::read_public_key(flags.assets_key));
  }
  unsigned threads =
      flags.threads != 0 ? flags.threads : std::max(1u, std::min(std::thread::hardware_concurrency(), 64u));
  owner::GpuHost gpu(flags.gpu);
  owner::ModelStore store(flags.assets, [&](const std::string& name, const std::string& folder) {
    return load_with_prompts(name, folder, flags, assets_key, release, threads, gpu);
  });
  TIE_CHECK_OK(store.scan());
  if (!flags.served.empty())
    for (const owner::ModelRow& row : store.rows()) owner::forget_served(flags.served, row.name);
  TIE_TRY(os::Fd listener, os::listen_unix(flags.socket));
  owner::OwnerServer server(store, std::move(options));
  TIE_CHECK_OK(server.serve_models_in(flags.model_sockets));
  TIE_TRY(auto quit, os::socket_pair());
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  std::thread loading([&store, quit = quit.first.get(), watch_ms = flags.watch_ms] {
    load_all(store);
    watch_assets(store, quit, watch_ms);
  });
  os::notify_ready();
  auto outcome = server.run(listener.get(), stop.get());
  quit.second.close();
  loading.join();
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Holds the weights and the system-prompt cache of this node across recycles."};
  app.add_option("--socket", flags.socket, "owner.sock to serve: states, and orders to reload")->required();
  app.add_option("--model-sockets", flags.model_sockets,
                 "folder for MODEL/weights.sock, the socket of each model's runtime")
      ->required();
  app.add_option("--assets", flags.assets, "folder with models/NAME/{weights.gguf,tokenizer.img,template}")->required();
  app.add_option("--assets-key", flags.assets_key, "public key of the operator: take signed assets only");
  app.add_option("--kernels", flags.kernels,
                 "kernel set the runtimes will use; refused when this CPU lacks it (the packing serves every set)");
  app.add_option("--release-id", flags.release_id, "release id, 64 hex digits, told to the runtimes");
  app.add_option("--watch-ms", flags.watch_ms, "between looks at the assets; 0 = only when told")
      ->check(CLI::Range(0, 3'600'000));
  app.add_option("--served", flags.served, "folder for what is handed out of each model, for whoever states it");
  app.add_option("--threads", flags.threads, "packing threads (default: one for each CPU)");
  app.add_option("--cuda-driver", flags.gpu.driver, "the CUDA driver's library, for models on a GPU");
  app.add_option("--gpu-kernels", flags.gpu.kernels,
                 "the GPU's kernels, whose hash of its memory guards the weights (default: the installed file)");
  app.add_option("--nvml", flags.gpu.nvml, "NVIDIA's management library, asked by models of device = \"auto\"");
  CLI11_PARSE(app, argc, argv);
  auto outcome = serve(flags);
  return outcome ? 0 : give_up(outcome.error());
}
