#include "client/proxy/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "client/proxy/client_stream.h"
#include "client/proxy/client_watcher.h"
#include "client/proxy/connection_table.h"

namespace tie::client {
namespace {

// Why the request now being read on this thread is refused before its body; empty: it is not.
struct Refused {
  int status = 0;
  std::string sentence;
};
struct Connection {
  ClientStream* stream = nullptr;
  Refused refused;
  bool handed_over = false;  // to the handler: what is wrong from here on is not HTTP itself
  bool not_http = false;     // the library refused it: where the next request would begin is not known
  bool old = false;          // HTTP/1.0: knows no chunks, so the end of the connection is the end of the reply
};
thread_local Connection current;

// One that no number fits makes the library wait for bytes that never come.
bool is_length(const std::string& text) {
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool may_bring_a_body(const httplib::Request& request) {
  return request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
}

bool brings_a_body(const httplib::Request& request) {
  return request.has_header("Transfer-Encoding") ||
         request.get_header_value("Content-Length").find_first_not_of('0') != std::string::npos;
}

Refused judge(const httplib::Request& request) {
  if (request.target.size() > kMaxHttpTargetBytes) return {414, "The address is too long."};
  if (request.has_header("Content-Encoding") && request.get_header_value("Content-Encoding") != "identity") {
    return {415, "Compressed bodies are not taken: send plain JSON."};
  }
  if (request.has_header("Transfer-Encoding") && request.has_header("Content-Length")) {
    return {400, "Both Transfer-Encoding and Content-Length were given."};
  }
  if (request.get_header_value_count("Content-Length") > 1 || request.get_header_value_count("Host") > 1) {
    return {400, "A header was given twice."};
  }
  if (request.has_header("Content-Length") && !is_length(request.get_header_value("Content-Length"))) {
    return {400, "The Content-Length is not a number of bytes."};
  }
  if (request.has_header("Transfer-Encoding") &&
      ::strcasecmp(request.get_header_value("Transfer-Encoding").c_str(), "chunked") != 0) {
    return {400, "The Transfer-Encoding is not 'chunked'."};
  }
  if (!may_bring_a_body(request)) {
    // The library does not read it: it would be taken for the connection's next request.
    return brings_a_body(request) ? Refused{400, "A " + request.method + " request brings no body here."} : Refused{};
  }
  std::string type = request.get_header_value("Content-Type");
  if (type.rfind("multipart/", 0) == 0 || type.rfind("application/x-www-form-urlencoded", 0) == 0) {
    return {415, "The body must be JSON: add the header 'Content-Type: application/json'."};
  }
  return {};
}

thread_local uint64_t arrival = 0;  // of the connection that this thread serves

// A thread for each connection; the number is bounded where connections are counted.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(ConnectionTable& connections) : connections_(connections) {}
  void enqueue(std::function<void()> serve) override {
    {
      std::lock_guard lock(mutex_);
      ++running_;
    }
    const uint64_t number = connections_.arrive();
    try {
      std::thread([this, number, serve] { run(number, serve); }).detach();
    } catch (const std::system_error&) {
      run(number, serve);  // no thread to be had: the connection is served here, one at a time
    }
  }
  void shutdown() override {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void run(uint64_t number, const std::function<void()>& serve) {
    arrival = number;
    serve();
    std::lock_guard lock(mutex_);
    if (--running_ == 0) idle_.notify_all();
  }
  ConnectionTable& connections_;
  std::mutex mutex_;
  std::condition_variable idle_;
  int running_ = 0;
};

void copy_reply(HttpReply&& reply, httplib::Response& out) {
  out.status = reply.status;
  for (const auto& [name, value] : reply.headers) out.set_header(name, value);
  if (!reply.stream) {
    if (reply.keep) {
      // With a provider the library keeps `keep` until the body is out.
      auto body = std::make_shared<std::string>(std::move(reply.body));
      if (!body->empty()) {
        out.set_content_provider(
            body->size(), reply.content_type,
            [body](size_t offset, size_t length, httplib::DataSink& sink) {
              return sink.write(body->data() + offset, length);
            },
            [keep = std::move(reply.keep)](bool) {});
        return;
      }
    }
    out.set_content(std::move(reply.body), reply.content_type);
    return;
  }
  auto pieces = [stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
    bool client_there = true;
    bool more = stream([&](std::string_view piece) {
      client_there = sink.write(piece.data(), piece.size());
      return client_there;
    });
    if (!client_there) return false;
    if (!more) sink.done();
    return true;
  };
  auto release = [keep = std::move(reply.keep)](bool) {};
  if (current.old) return out.set_content_provider(reply.content_type, std::move(pieces), std::move(release));
  out.set_chunked_content_provider(reply.content_type, std::move(pieces), std::move(release));
}

}  // namespace

struct HttpServer::Impl final : httplib::Server {
  explicit Impl(size_t max_connections) : connections(max_connections) {}
  HttpServer::Handler handler;
  HttpServer::Refusal refusal;
  std::function<bool(std::string_view)> exists;
  ClientWatcher watcher;
  std::atomic<bool> stopping{false};  // no further request is taken
  std::atomic<bool> stopped{false};
  ConnectionTable connections;
  std::atomic<int> refusals{0};
  int bound_port = 0;
  std::thread acceptor;

  void set_up() {
    new_task_queue = [this] { return new ConnectionThreads(connections); };
    set_payload_max_length(kMaxHttpBodyBytes);
    set_keep_alive_max_count(
        kMaxRequestsPerConnection);  // these two are only told to the client; serve_connection keeps them
    set_keep_alive_timeout(kIdleConnectionTimeoutMs / 1000);
    auto serve = [this](const httplib::Request& request, httplib::Response& response) { answer(request, response); };
    Get(".*", serve).Post(".*", serve).Put(".*", serve).Patch(".*", serve).Delete(".*", serve).Options(".*", serve);
    set_pre_routing_handler([this](const httplib::Request&, httplib::Response& response) {
      if (current.refused.status == 0) return HandlerResponse::Unhandled;
      refuse(current.refused.status, current.refused.sentence, response);
      return HandlerResponse::Handled;
    });
    HandlerWithResponse own_words = [this](const httplib::Request&, httplib::Response& response) {
      if (!response.has_header("x-tie-verification")) refuse(response.status, {}, response);
      current.not_http = current.not_http || !current.handed_over;
      return HandlerResponse::Handled;
    };
    set_error_handler(own_words);
    set_post_routing_handler([](const httplib::Request&, httplib::Response& response) {
      if (!current.not_http) return;
      response.headers.erase("Keep-Alive");
      response.headers.erase("Connection");
      response.set_header("Connection", "close");
    });
  }

  // The library listens with a queue of five: a burst of clients would wait a second for its SYN to be sent again.
  void widen_backlog() { ::listen(svr_sock_, kMaxHttpConnections); }

  void refuse(int status, const std::string& sentence, httplib::Response& response) {
    HttpReply reply;
    reply.status = status;
    refusal(status, sentence, reply);
    copy_reply(std::move(reply), response);
  }

  void answer(const httplib::Request& request, httplib::Response& response) {
    current.handed_over = true;
    HttpRequest asked{request.method, request.path, request.body,
                      [&request](const std::string& name) { return request.get_header_value(name); },
                      [this, socket = current.stream->socket()](std::function<void()> gone) {
                        return watcher.watch(socket, std::move(gone));
                      }};
    HttpReply reply;
    try {
      handler(asked, reply);
    } catch (const std::exception&) {
      reply = {};
      refusal(500, "The proxy failed on this request.", reply);
      reply.status = 500;
    }
    copy_reply(std::move(reply), response);
  }

  // Overrides the library's loop over a connection's requests, so that its stream is ours.
  bool process_and_close_socket(socket_t socket) override {
    ConnectionTable::Place place{.socket = socket, .arrival = arrival};
    int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ClientStream stream(socket);
    if (!stopping && connections.enter(place)) {
      serve_connection(stream, place);
      connections.leave(place);
    } else {
      say_no_room(stream, stopping ? "The proxy is being stopped; ask again when it is back."
                                   : "Too many requests are being served here at this moment; try again shortly.");
    }
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    return true;
  }

  // Every place is being served, or the proxy ends. The client gets to read why; of too many at once it is not waited
  // for.
  void say_no_room(ClientStream& stream, const char* why) {
    HttpReply reply;
    reply.status = 503;
    refusal(reply.status, why, reply);
    std::string text = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: " +
                       reply.content_type + "\r\nContent-Length: " + std::to_string(reply.body.size()) + "\r\n";
    for (const auto& [name, value] : reply.headers) text.append(name).append(": ").append(value).append("\r\n");
    text.append("\r\n").append(reply.body);
    stream.write(text.data(), text.size());
    if (refusals.fetch_add(1) < kMaxRefusals) stream.linger();
    refusals.fetch_sub(1);
  }

  void serve_connection(ClientStream& stream, ConnectionTable::Place& place) {
    int64_t idle_ms = kFirstRequestTimeoutMs;
    for (int served = 0; served < kMaxRequestsPerConnection && stream.wait_for_request(stopping, idle_ms); ++served) {
      idle_ms = kIdleConnectionTimeoutMs;
      current = {&stream, {}};
      bool close_asked = false;
      bool fine = process_request(stream, false, close_asked, [&](httplib::Request& request) {
        stream.begin_body(request.has_header("Transfer-Encoding"));
        current.refused = judge(request);
        if (current.refused.status == 415 && exists && !exists(request.path)) current.refused = {404, {}};
        if (!connections.serve(place)) current.refused = {503, "The connection was closed to make room for others."};
        request.ranges.clear();
        request.headers.erase("Range");
        request.headers.erase("Accept-Encoding");
        // Without either header there is no body (RFC 9112, 6.3); the library would wait for one until the client
        // leaves.
        if (may_bring_a_body(request) && !request.has_header("Content-Length") &&
            !request.has_header("Transfer-Encoding"))
          request.set_header("Content-Length", "0");
        current.old = request.version == "HTTP/1.0";
        if (current.refused.status == 0 && !current.old) return;
        request.headers.erase("Connection");
        request.set_header("Connection", "close");
      });
      if (current.refused.status != 0 || stream.over_budget()) return stream.linger();
      if (current.not_http) return stream.linger();
      if (!fine || close_asked || current.old) return;
      connections.wait(place);
    }
  }
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, Handler handler, Refusal refusal) {
  auto impl = std::make_unique<Impl>(static_cast<size_t>(options.max_connections));
  impl->handler = std::move(handler);
  impl->refusal = std::move(refusal);
  impl->exists = std::move(options.exists);
  impl->set_up();
  // The library asks for SO_REUSEPORT by default, which would let two proxies share a port unnoticed.
  impl->set_socket_options([](socket_t socket) {
    int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  impl->bound_port = options.port;
  if (options.port == 0) {
    impl->bound_port = impl->bind_to_any_port(options.host);
  } else if (!impl->bind_to_port(options.host, options.port)) {
    impl->bound_port = -1;
  }
  if (impl->bound_port <= 0) {
    return fail(Code::kIo, "cannot listen on " + options.host + ":" + std::to_string(options.port) +
                               ": the port is in use, perhaps by another `tie proxy`; choose another with --listen");
  }
  impl->widen_backlog();
  impl->acceptor = std::thread([server = impl.get()] { server->listen_after_bind(); });
  while (!impl->is_running()) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  stop();
}

int HttpServer::port() const {
  return impl_->bound_port;
}

void HttpServer::drain(Deadline deadline, const std::function<bool()>& hurry) {
  impl_->stopping = true;
  while (impl_->connections.being_served() > 0 && !deadline.passed() && !hurry())
    std::this_thread::sleep_for(std::chrono::milliseconds(kDrainPollMs));
}

void HttpServer::stop() {
  if (impl_->stopped.exchange(true)) return;
  impl_->watcher.all_gone();
  // Once the library is told to stop it writes nothing more, and the last words of these answers would be lost.
  drain(Deadline::in_ms(kLastWordsMs), [] { return false; });
  impl_->Server::stop();
  impl_->acceptor.join();
}

}  // namespace tie::client
