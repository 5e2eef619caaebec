// Stands in for any process of the node: copied into a test prefix under the name of a product's program, it
// understands that program's socket flags, serves and connects as the edge table says, and is ready at once. Lets the
// launcher be tested without the product.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "os/unix_socket.h"

namespace {

using namespace tie;

std::map<std::string, std::vector<std::string>> flags_of(int argc, char** argv) {
  std::map<std::string, std::vector<std::string>> out;
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i][0] == '-') out[argv[i]].push_back(argv[i + 1]);
  return out;
}

const std::map<std::string, std::vector<std::string>> kServes = {
    {"key_protectiond", {"--socket"}},
    {"gpuhealthd", {"--socket"}},
    {"tie-model-owner", {"--socket"}},
    {"cloudboardd", {"--control-socket"}},
    {"workload_servicesd", {"--decap-socket", "--authorize-socket", "--claims-socket"}},
    {"afm-runtime", {"--socket", "--kvxfer-socket"}},
    {"cache_stored", {"--socket"}},
    {"tie-status-probe", {"--socket"}},
    {"tie-controllerd", {"--socket"}}};

// Answers each connection with one line about itself; a frame "exit N" ends it.
int serve(const std::string& name, std::vector<os::Fd>& listeners, int stop) {
  for (;;) {
    std::vector<pollfd> fds = {{stop, POLLIN, 0}};
    for (const os::Fd& l : listeners) fds.push_back({l.get(), POLLIN, 0});
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) return 0;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      auto connection = os::accept_unix(fds[i].fd, Deadline::in_ms(0));
      if (!connection) continue;
      auto frame = os::receive_frame(connection->get(), 4096, 0, Deadline::in_ms(1000));
      std::string text = frame ? to_string(frame->payload) : "";
      if (text.starts_with("exit ")) ::_exit(std::atoi(text.c_str() + 5));
      if (text.starts_with("say ")) {
        TIE_LOG("fake", "asked to say something of {} bytes", text.size());
        std::fprintf(stderr, "%s\n", text.c_str() + 4);
      }
      (void)os::send_frame(connection->get(), as_bytes(name), {}, Deadline::in_ms(1000));
    }
  }
}

// A per-request process: asks the next one down the line, answers with both names, ends with its connection.
int serve_connection(const std::string& name, const std::string& next_socket) {
  auto connection = os::activation_connection();
  if (!connection) return 3;
  os::Fd next;
  if (!next_socket.empty()) {
    auto made = os::connect_unix(next_socket, Deadline::in_ms(1000));
    if (!made) return 4;
    next = std::move(*made);
  }
  if (!os::enter_serving_mode(os::ServingMode::kPerRequest)) return 5;
  for (;;) {
    auto frame = os::receive_frame(connection->get(), 4096, 0, Deadline::in_ms(60'000));
    if (!frame) return 0;
    std::string answer = name + ":" + std::to_string(::getpid());
    if (next) {
      if (!os::send_frame(next.get(), frame->payload, {}, Deadline::in_ms(1000))) return 6;
      auto reply = os::receive_frame(next.get(), 4096, 0, Deadline::in_ms(1000));
      answer += " " + (reply ? to_string(reply->payload) : "nothing");
    }
    if (!os::send_frame(connection->get(), as_bytes(answer), {}, Deadline::in_ms(1000))) return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!os::harden_process()) return 1;
  const char* slash = std::strrchr(argv[0], '/');
  std::string name = slash != nullptr ? slash + 1 : argv[0];
  auto flags = flags_of(argc, argv);
  if (name == "cb_jobhelper") return serve_connection(name, flags["--app-socket"].at(0));
  if (name == "tie-cloud-app") return serve_connection(name, "");
  auto stop = os::termination_signal_fd();
  std::vector<os::Fd> listeners;
  for (const std::string& flag : kServes.at(name)) {
    auto listener = os::listen_unix(flags[flag].at(0));
    if (!listener) {
      std::fprintf(stderr, "%s\n", listener.error().message.c_str());
      return 2;
    }
    listeners.push_back(std::move(*listener));
  }
  os::notify_ready();
  return serve(name, listeners, stop->get());
}
