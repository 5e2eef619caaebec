#include "client/cli/asset_commands.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <memory>

#include "base/clock.h"
#include "crypto/ed25519.h"
#include "crypto/ed25519_pem.h"
#include "os/fd.h"
#include "supervision/launcher/node_config.h"
#include "supervision/signed_assets/asset_manifest.h"

namespace tie::cli {
namespace {

constexpr size_t kMaxKeyFileBytes = 4096;
constexpr int64_t kWriteMs = 10'000;

struct Options {
  std::string assets, key;
  std::string folder() const { return assets.empty() ? launcher::default_assets_folder() : assets; }
};

int say(const Error& error) {
  fmt::print(stderr, "tie assets: {}\n", error.message);
  return 1;
}

// Never over an existing key: what it signed could not be signed again.
Result<void> write_new(const std::string& path, ByteView bytes, int mode) {
  os::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) return fail_errno(path, errno);
  return os::write_all(file.get(), bytes, Deadline::in_ms(kWriteMs));
}

Result<void> make_key(const Options& o) {
  auto pair = crypto::ed25519_generate();
  TIE_CHECK_OK(write_new(o.key + ".key", crypto::ed25519_seed_to_pem(pair.seed.view()).view(), 0600));
  TIE_CHECK_OK(write_new(o.key + ".pub", as_bytes(crypto::ed25519_public_to_pem(pair.public_key)), 0644));
  fmt::print(
      "{0}.key  signs (keep it off the node):  tie assets sign --key {0}.key\n"
      "{0}.pub  goes to the node as /etc/tie/assets.pub, which then takes signed assets only\n",
      o.key);
  return {};
}

Result<void> sign(const Options& o) {
  TIE_TRY(Bytes pem, os::read_file(o.key, kMaxKeyFileBytes));
  auto seed = crypto::ed25519_seed_from_pem(as_text(pem));
  secure_zero(pem);
  if (!seed) return std::unexpected(std::move(seed.error()).context(o.key));
  TIE_TRY(auto manifest, assets::sign_assets(o.folder(), seed->view()));
  fmt::print("signed {} files of {}\n", manifest.files().size(), o.folder());
  return {};
}

Result<void> verify(const Options& o) {
  TIE_TRY(Bytes key, assets::read_public_key(o.key));
  TIE_TRY(auto manifest, assets::verify_assets(o.folder(), key));
  fmt::print("{} files, all as signed\n", manifest.files().size());
  return {};
}

}  // namespace

void add_asset_commands(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* assets = app.add_subcommand("assets", "sign models and prompts, so that a node takes no others");
  assets->require_subcommand(1);
  assets->fallthrough();
  assets->add_option("--assets", options->assets, "asset folder")->envname("TIE_ASSETS");
  auto add = [&](const char* name, const char* help, const char* key_help, Result<void> (*action)(const Options&)) {
    CLI::App* command = assets->add_subcommand(name, help);
    command->add_option("--key", options->key, key_help)->required();
    command->callback([options, action, &exit_code] {
      auto done = action(*options);
      exit_code = done ? 0 : say(done.error());
    });
  };
  add("keygen", "make the operator's key pair", "NAME: writes NAME.key and NAME.pub", make_key);
  add("sign", "write the manifest of the assets and its signature", "the operator's private key", sign);
  add("verify", "check every file against the signed manifest", "the operator's public key", verify);
}

}  // namespace tie::cli
