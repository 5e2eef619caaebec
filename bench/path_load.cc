// Load on the private path, light enough to share the machine with the node: --proxy speaks HTTP and server-sent events
// to `tie proxy` over plain sockets, one thread for all clients; --node is the encrypted client itself, the session
// library without a proxy, one thread a client. A closed loop: each client sends its next request when its last one has
// ended. Prints one JSON line. The prompt is raw text of as many tokens as asked for ("the" is one).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <thread>

#include "bench/load_report.h"
#include "client/session/session.h"
#include "inference.pb.h"
#include "os/fd.h"

namespace {

using namespace tie;
using bench::Clock;

struct Options {
  std::string proxy, node, policy, model = "smollm2-135m-instruct";
  bench::LoadOptions load;
};

std::string prompt_text(uint32_t tokens) {
  std::string text = "the";
  for (uint32_t i = 1; i < tokens; ++i) text += " the";
  return text;
}

// ---- through the proxy ----

class HttpClient {
 public:
  Result<void> begin(const Options& o, const std::string& request) {
    began_ = Clock::now();
    times_ = {};
    text_.clear();
    size_t colon = o.proxy.rfind(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(o.proxy.substr(colon + 1))));
    ::inet_pton(AF_INET, o.proxy.substr(0, colon).c_str(), &address.sin_addr);
    fd_ = os::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      return fail_errno("connecting to the proxy", errno);
    int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::send(fd_.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
      return fail_errno("sending a request", errno);
    return {};
  }

  int fd() const { return fd_.get(); }
  const bench::RequestTimes& times() const { return times_; }

  // True when the answer is complete.
  Result<bool> read_some() {
    char buffer[16 << 10];
    ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, 0);
    if (n <= 0) return fail(Code::kIo, "the proxy closed the connection: " + text_.substr(0, 500));
    text_.append(buffer, static_cast<size_t>(n));
    size_t end = 0;
    for (size_t at; (at = text_.find("\n\n", end)) != std::string::npos; end = at + 2)
      take_event(std::string_view(text_).substr(end, at - end));
    text_.erase(0, end);
    if (!done_) return false;
    done_ = false;
    times_.total_ms = bench::ms_since(began_);
    fd_.close();
    return true;
  }

 private:
  void take_event(std::string_view event) {
    if (event.find("data: [DONE]") != std::string_view::npos) done_ = true;
    constexpr std::string_view kText = "\"text\":\"", kTokens = "\"completion_tokens\":";
    size_t text = event.find(kText);
    if (text != std::string_view::npos && event[text + kText.size()] != '"' && times_.events++ == 0)
      times_.first_ms = bench::ms_since(began_);
    size_t tokens = event.find(kTokens);
    if (tokens != std::string_view::npos)
      times_.tokens = static_cast<uint32_t>(std::atoi(event.data() + tokens + kTokens.size()));
  }

  os::Fd fd_;
  std::string text_;
  Clock::time_point began_;
  bench::RequestTimes times_;
  bool done_ = false;
};

std::string http_request(const Options& o) {
  std::string body =
      fmt::format(R"({{"model":"{}","prompt":"{}","max_tokens":{},"temperature":0,"stream":true,"ignore_eos":true,)"
                  R"("stream_options":{{"include_usage":true}}}})",
                  o.model, prompt_text(o.load.prompt_tokens), o.load.tokens);
  return fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      o.proxy, body.size(), body);
}

Result<void> load_proxy(const Options& o, bench::LoadReport& report) {
  std::string request = http_request(o);
  std::vector<HttpClient> clients(std::min(o.load.clients, o.load.requests));
  uint32_t begun = 0, ended = 0;
  for (auto& client : clients) {
    TIE_CHECK_OK(client.begin(o, request));
    ++begun;
  }
  std::vector<pollfd> polled(clients.size());
  while (ended < o.load.requests) {
    for (size_t i = 0; i < clients.size(); ++i) polled[i] = {clients[i].fd(), POLLIN, 0};
    if (::poll(polled.data(), polled.size(), 120'000) <= 0) return fail(Code::kDeadline, "no answer for two minutes");
    for (size_t i = 0; i < clients.size(); ++i) {
      if (polled[i].revents == 0) continue;
      TIE_TRY(bool complete, clients[i].read_some());
      if (!complete) continue;
      report.add(clients[i].times());
      ++ended;
      if (begun >= o.load.requests) continue;
      ++begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(o.load.pause_ms));
      TIE_CHECK_OK(clients[i].begin(o, request));
    }
  }
  return {};
}

// ---- as the encrypted client ----

Result<void> ask_once(client::Session& session, const v1::InferenceRequest& request, bench::LoadReport& report) {
  auto began = Clock::now();
  bench::RequestTimes times;
  auto answer = session.ask(request, std::make_shared<client::Cancellation>());
  v1::InferenceEvent event;
  for (;;) {
    TIE_TRY(bool more, answer->next(event));
    if (!more) break;
    if (!event.text().empty() && times.events++ == 0) times.first_ms = bench::ms_since(began);
    if (event.has_usage()) times.tokens = event.usage().completion_tokens();
  }
  times.total_ms = bench::ms_since(began);
  report.add(times);
  return {};
}

Result<void> load_node(const Options& o, client::Session& session, bench::LoadReport& report) {
  v1::InferenceRequest request;
  request.set_model(o.model);
  request.set_raw_text(prompt_text(o.load.prompt_tokens));
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(static_cast<int32_t>(o.load.tokens));
  request.mutable_sampling()->set_ignore_eos(true);
  std::atomic<uint32_t> begun{0};
  std::mutex mutex;
  Result<void> outcome;
  std::vector<std::thread> clients;
  for (uint32_t i = 0; i < o.load.clients; ++i) {
    clients.emplace_back([&] {
      while (begun.fetch_add(1) < o.load.requests) {
        auto done = ask_once(session, request, report);
        std::this_thread::sleep_for(std::chrono::milliseconds(o.load.pause_ms));
        if (done) continue;
        std::lock_guard lock(mutex);
        outcome = std::move(done);
        return;
      }
    });
  }
  for (auto& client : clients) client.join();
  return outcome;
}

Result<void> run(const Options& o) {
  bench::LoadReport report;
  if (!o.proxy.empty()) {
    report.begin();
    TIE_CHECK_OK(load_proxy(o, report));
  } else {
    TIE_TRY(auto session, client::Session::open({.node = o.node, .policy_path = o.policy}));
    TIE_TRY(auto node, session->node());
    report.begin();
    TIE_CHECK_OK(load_node(o, *session, report));
  }
  report.print();
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("closed-loop load on the private path");
  auto* proxy = app.add_option("--proxy", o.proxy, "HOST:PORT of tie proxy");
  app.add_option("--node", o.node, "HOST:PORT of cloudboardd: the encrypted client without a proxy")->excludes(proxy);
  app.add_option("--policy", o.policy, "with --node: the client's policy file");
  app.add_option("--model", o.model);
  app.add_option("--clients", o.load.clients)->check(CLI::Range(1, 1000));
  app.add_option("--requests", o.load.requests);
  app.add_option("--prompt-tokens", o.load.prompt_tokens);
  app.add_option("--tokens", o.load.tokens);
  app.add_option("--pause-ms", o.load.pause_ms, "between one client's requests; meant for one client");
  CLI11_PARSE(app, argc, argv);
  if (o.proxy.empty() == o.node.empty()) {
    fmt::print(stderr, "path_load: give --proxy or --node\n");
    return 2;
  }
  if (auto done = run(o); !done) {
    fmt::print(stderr, "{}\n", done.error().message);
    return 1;
  }
  return 0;
}
