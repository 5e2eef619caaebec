// `tie issuer`: issues one-time tokens to those who hold a credential. Runs where the operator's accounts are.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/clock.h"
#include "client/cli/command.h"
#include "client/proxy/http_server.h"
#include "keys/token_issuer/issuer_folder.h"
#include "keys/tokens/issuer_directory.h"
#include "os/process.h"

namespace tie::cli {
namespace {

constexpr const char* kRequestPath = "/token-request";
constexpr int64_t kReloadMs = 2'000;
constexpr int64_t kDayS = 24 * 3600;

struct IssuerFlags {
  std::string folder, name, credential, listen = "127.0.0.1:8124";
  int64_t key_days = 30;
  uint32_t per_hour = 1000;
  bool behind_tls = false;
};

int64_t now_s() {
  return wall_clock_ms() / 1000;
}

std::string bearer(const client::HttpRequest& request) {
  const std::string header = request.header("Authorization");
  constexpr std::string_view kScheme = "Bearer ";
  return header.starts_with(kScheme) ? header.substr(kScheme.size()) : std::string();
}

void refuse(int status, const std::string& sentence, client::HttpReply& reply) {
  reply.status = status;
  reply.content_type = "text/plain; charset=utf-8";
  reply.body = sentence.empty() ? "refused\n" : sentence + "\n";
  if (status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (status == 429) reply.headers.emplace_back("Retry-After", "60");
}

void answer(issuer::Issuer& server, const std::string& directory, const client::HttpRequest& request,
            client::HttpReply& reply) {
  reply.headers.emplace_back("x-tie-verification", "issuer");  // marks replies as this handler's own
  if (request.path == tokens::kDirectoryPath && request.method == "GET") {
    reply.content_type = tokens::kDirectoryType;
    reply.headers.emplace_back("Cache-Control", "public, max-age=600");
    reply.body = directory;
    return;
  }
  if (request.path != kRequestPath) return refuse(404, "this is a token issuer", reply);
  if (request.method != "POST") return refuse(405, "token requests are posted", reply);
  if (request.header("Content-Type") != tokens::kRequestType)
    return refuse(415, "the body must be " + std::string(tokens::kRequestType), reply);
  issuer::Answer given = server.issue(bearer(request), as_bytes(request.body), wall_clock_ms());
  if (given.status != 200) return refuse(given.status, given.sentence, reply);
  reply.content_type = tokens::kResponseType;
  reply.body = to_string(given.response);
}

Result<client::HttpServerOptions> address_of(const IssuerFlags& flags) {
  const size_t colon = flags.listen.rfind(':');
  client::HttpServerOptions out;
  out.port = colon == std::string::npos ? 0 : std::atoi(flags.listen.c_str() + colon + 1);
  if (out.port < 1 || out.port > 65535)
    return fail(Code::kBadRequest, "--listen must be ADDRESS:PORT, not '" + flags.listen + "'");
  out.host = flags.listen.substr(0, colon);
  const bool loopback = out.host == "localhost" || out.host.starts_with("127.") || out.host == "::1";
  if (!loopback && !flags.behind_tls)
    return fail(Code::kBadRequest,
                "API keys must not cross a network in clear: put a TLS proxy before the issuer and say so with "
                "--behind-tls");
  return out;
}

// New credentials count without a restart; new keys need one, which no client notices.
Result<void> serve(const IssuerFlags& flags) {
  TIE_TRY(client::HttpServerOptions http, address_of(flags));
  TIE_TRY(const os::Fd stop, os::termination_signal_fd());
  TIE_TRY(std::vector<issuer::SigningKey> keys, issuer::load_keys(flags.folder));
  TIE_TRY(std::vector<issuer::Credential> credentials, issuer::load_credentials(flags.folder));
  TIE_TRY(tokens::IssuerFile half, issuer::load_public(flags.folder));
  const std::string directory = tokens::render_directory({kRequestPath, std::move(half.keys)});
  TIE_CHECK_OK(os::harden_process());
  issuer::Issuer server(std::move(keys), std::move(credentials));
  TIE_TRY(auto running, client::HttpServer::start(
                            http,
                            [&](const client::HttpRequest& request, client::HttpReply& reply) {
                              answer(server, directory, request, reply);
                            },
                            refuse));
  fmt::print("token issuer {} on http://{}\n", half.name, flags.listen);
  std::fflush(stdout);
  os::notify_ready();
  while (!os::wait_readable(stop.get(), Deadline::in_ms(kReloadMs)))
    if (auto fresh = issuer::load_credentials(flags.folder)) server.replace_credentials(std::move(*fresh));
  running->stop();
  return {};
}

Result<void> init(const IssuerFlags& flags) {
  TIE_CHECK_OK(issuer::create_folder(flags.folder, flags.name, now_s(), flags.key_days * kDayS));
  fmt::print("{}/issuer is the public half: nodes name it as token_issuer in node.toml\n", flags.folder);
  return {};
}

Result<void> new_key(const IssuerFlags& flags) {
  TIE_TRY(tokens::IssuerFile file, issuer::add_key(flags.folder, now_s(), flags.key_days * kDayS));
  fmt::print("{} keys; give nodes the new {}/issuer and start the issuer again\n", file.keys.size(), flags.folder);
  return {};
}

Result<void> new_credential(const IssuerFlags& flags) {
  TIE_TRY(std::string api_key, issuer::add_credential(flags.folder, flags.credential, flags.per_hour));
  fmt::print("{}\n", api_key);
  return {};
}

}  // namespace

void add_issuer_commands(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<IssuerFlags>();
  CLI::App* top = app.add_subcommand("issuer", "issue one-time tokens to those who hold a credential");
  top->require_subcommand(1);
  const auto add = [&](const char* name, const char* about, Result<void> (*run)(const IssuerFlags&)) {
    CLI::App* command = top->add_subcommand(name, about);
    command->add_option("folder", flags->folder, "the issuer's folder")->required();
    command->callback([flags, run, &exit_code] {
      auto done = run(*flags);
      exit_code = done ? int(kExitOk) : report(done.error());
    });
    return command;
  };
  const auto key_days = [&](CLI::App* command) {
    command->add_option("--key-days", flags->key_days, "how long the key's tokens count")
        ->check(CLI::Range(2, 400))
        ->capture_default_str();
  };
  CLI::App* first = add("init", "make a folder with a first key", init);
  first->add_option("--name", flags->name, "HOST or HOST:PORT under which clients reach the issuer")->required();
  key_days(first);
  key_days(add("key", "add the key that follows the last one", new_key));
  CLI::App* credential =
      add("credential", "add a credential and print its API key, which is kept nowhere", new_credential);
  credential->add_option("name", flags->credential, "whose it is")->required();
  credential->add_option("--per-hour", flags->per_hour, "tokens an hour")->capture_default_str();
  CLI::App* serving = add("serve", "serve token requests until stopped", serve);
  serving->add_option("--listen", flags->listen, "ADDRESS:PORT")->capture_default_str();
  serving->add_flag("--behind-tls", flags->behind_tls, "a TLS proxy stands before this address");
}

}  // namespace tie::cli
