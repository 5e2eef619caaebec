// The proxy's HTTP/1.1 face: cpp-httplib behind limits of our own (limits.h): header and body sizes, times,
// connections (connection_table.h says who gives way), no compression, no ranges, no multipart. One thread for each
// connection; `handle` is called on it. Tells a running answer when its client goes away. Untrusted input: everything.
// Listens on loopback only unless told otherwise by its caller.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace tie::client {

struct HttpRequest {
  std::string method, path, body;
  std::function<std::string(const std::string& name)> header;  // the first of that name; "" when absent
  // While the returned handle lives, `gone` is called once if the client closes its connection, from another thread; it
  // must not block.
  std::function<std::shared_ptr<void>(std::function<void()> gone)> watch_client;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // When set, the body comes in pieces instead: called until it returns false; `write` returns false when the client
  // has gone.
  std::function<bool(const std::function<bool(std::string_view)>& write)> stream;
  // Kept until the reply has been written.
  std::shared_ptr<void> keep;
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8123;            // 0: any free one
  int max_connections = 256;  // kMaxHttpConnections of limits.h
  // Whether there is anything at a path, so that a kind of body is not blamed where there is not; null: everywhere.
  std::function<bool(std::string_view path)> exists;
};

class HttpServer {
 public:
  using Handler = std::function<void(const HttpRequest&, HttpReply&)>;
  // Fills the body of replies that the server itself gives (400, 413, …): status and sentence.
  using Refusal = std::function<void(int status, const std::string& sentence, HttpReply&)>;

  // Binds and starts to listen. kIo with the address when it is taken.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, Handler handler, Refusal refusal);
  ~HttpServer();  // stop()
  int port() const;
  // Refuses new requests from now on and lets running answers end; returns when none runs, at the deadline, or when
  // `hurry`, asked many times a second, says true.
  void drain(Deadline deadline, const std::function<bool()>& hurry);
  // Refuses new connections, tells running answers that their clients are gone, waits for the threads.
  void stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tie::client
