// The OpenAI-compatible face of a private node: translates requests, has the session seal them, writes answers back.
// Every reply says in `x-tie-verification` how the node was verified. Runs on the user's own machine; holds plaintext
// only while a request is answered. Threads: handle() may be called from any number of threads. Source:
// docs/openai-parameters.md, ARCHITECTURE.md, "The local proxy".
#pragma once
#include <memory>
#include <string>

#include "client/proxy/host_guard.h"
#include "client/proxy/http_server.h"
#include "client/session/session.h"
#include "client/turn_keys/turn_key_table.h"

namespace tie::client {

struct ProxyOptions {
  HttpServerOptions http;
  std::string api_key;  // empty: none is asked for
  // Null: no conversation's cache is found again. Partitioned by the API key that an application sends.
  std::shared_ptr<TurnKeyTable> turn_keys;
};

class Proxy {
 public:
  Proxy(std::shared_ptr<Session> session, HostGuard guard, std::shared_ptr<TurnKeyTable> turn_keys);
  void handle(const HttpRequest& request, HttpReply& reply);
  // A reply that the HTTP server gives by itself.
  void refuse(int status, const std::string& sentence, HttpReply& reply) const;
  // Whether a request to that path, of whichever method, is about anything.
  static bool exists(std::string_view path);

 private:
  void route(const HttpRequest& request, HttpReply& reply);
  enum class Place { kNone, kWelcome, kHealth, kChat, kCompletions, kModels, kModel };
  struct Address {
    Place place;
    std::string_view path;  // without a last slash
  };
  static Address address_of(std::string_view path);
  void answer(bool chat, const HttpRequest& request, HttpReply& reply);
  void list_models(HttpReply& reply);
  void show_model(const std::string& name, HttpReply& reply);
  void health(HttpReply& reply);
  std::optional<ApiError> check_model(const std::string& name);
  void add_headers(HttpReply& reply) const;

  std::shared_ptr<Session> session_;
  HostGuard guard_;
  std::shared_ptr<TurnKeyTable> turn_keys_;
  int64_t started_unix_s_;
};

// A listening proxy: server and translation together.
class RunningProxy {
 public:
  static Result<std::unique_ptr<RunningProxy>> start(std::shared_ptr<Session> session, ProxyOptions options);
  int port() const { return server_->port(); }
  // See HttpServer.
  void drain(Deadline deadline, const std::function<bool()>& hurry) { server_->drain(deadline, hurry); }
  void stop() { server_->stop(); }

 private:
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace tie::client
