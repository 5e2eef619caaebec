// A program in the victim's place: the launcher starts it under the product's name with the product's profile. It makes
// the victim's own connections and then does as it is told: frame "serve" enters the victim's serving mode, "whoami"
// tells where it runs, and each frame "ATTACK word..." (descriptors may come with it) is answered with "stopped" or
// "SUCCEEDED: what".
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <sstream>

#include "attacks.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "os/unix_socket.h"

namespace {

using namespace tie;

std::string flag(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  return "";
}

std::string open_descriptors() {
  std::string out;
  for (int fd = 0; fd < 256; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) out += " " + std::to_string(fd);
  return out;
}

// The victim's own connections, in the order of its flags.
std::vector<os::Fd> edges;

// "edge_frame INDEX HEX": one frame over a connection that the victim itself has; the reply in hex.
std::string exchange_on_edge(std::istringstream& words) {
  size_t index = 0;
  std::string hex;
  words >> index >> hex;
  auto bytes = from_hex(hex);
  if (index >= edges.size() || !bytes) return "no such edge";
  if (!os::send_frame(edges[index].get(), *bytes, {}, Deadline::in_ms(2000))) return "closed";
  auto reply = os::receive_frame(edges[index].get(), 65536, 0, Deadline::in_ms(10'000));
  return reply ? "reply " + to_hex(reply->payload) : "closed";
}

// "ask_socket PATH HEX": one frame over a new connection to a socket; the reply in hex and how many descriptors came.
std::string ask_socket(std::istringstream& words) {
  std::string path, hex;
  words >> path >> hex;
  auto bytes = from_hex(hex);
  auto peer = os::connect_unix(path, Deadline::in_ms(2000));
  if (!bytes || !peer) return "unreachable";
  if (!os::send_frame(peer->get(), *bytes, {}, Deadline::in_ms(2000))) return "closed";
  auto reply = os::receive_frame(peer->get(), 65536, os::kMaxPassedFds, Deadline::in_ms(30'000));
  return reply ? "reply " + std::to_string(reply->fds.size()) + " " + to_hex(reply->payload) : "closed";
}

// "relay PATH": from now on the test speaks through this process with a socket that the victim may reach.
void relay(int connection, const std::string& path) {
  auto peer = os::connect_unix(path, Deadline::in_ms(2000));
  if (!peer) return;
  pollfd fds[] = {{connection, POLLIN, 0}, {peer->get(), POLLIN, 0}};
  uint8_t buffer[65536];
  while (::poll(fds, 2, -1) > 0) {
    for (int i : {0, 1}) {
      if (fds[i].revents == 0) continue;
      ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
      if (n <= 0 || !os::write_all(fds[1 - i].fd, {buffer, static_cast<size_t>(n)}, Deadline::in_ms(5000))) return;
    }
  }
}

std::string answer_to(const std::string& program, os::Frame frame) {
  std::istringstream words(to_string(frame.payload));
  std::string name, word;
  words >> name;
  if (name == "whoami") {
    static int marker = 0x71e;
    std::ostringstream out;
    out << ::getpid() << " " << &marker << " uid " << ::getuid() << " program " << program << " fds"
        << open_descriptors();
    return out.str();
  }
  if (name == "edge_frame") return exchange_on_edge(words);
  if (name == "ask_socket") return ask_socket(words);
  auto attack = attacks::all().find(name);
  if (attack == attacks::all().end()) return "unknown attack " + name;
  attacks::Target target;
  while (words >> word) target.words.push_back(word == "SELF" ? program : word);
  target.fds = std::move(frame.fds);
  std::string achieved = attack->second(target);
  return achieved.empty() ? "stopped" : "SUCCEEDED: " + achieved;
}

int obey(const std::string& program, int connection, os::ServingMode mode) {
  bool serving = false;
  for (;;) {
    auto frame = os::receive_frame(connection, 65536, 4, Deadline::in_ms(60'000));
    if (!frame) return 0;
    std::string answer = "ok", text = to_string(frame->payload);
    if (text.starts_with("relay ")) {
      relay(connection, text.substr(6));
      return 0;
    }
    if (text == "serve") {
      serving = serving || os::enter_serving_mode(mode).has_value();
      if (!serving) return 5;
    } else {
      answer = answer_to(program, std::move(*frame));
    }
    if (!os::send_frame(connection, as_bytes(answer), {}, Deadline::in_ms(1000))) return 0;
  }
}

// As a daemon: the test reaches it over the socket that the victim serves.
int obey_as_daemon(const std::string& program, const std::string& socket, const std::string& other_socket) {
  auto listener = os::listen_unix(socket);
  os::Fd other;  // there to be connected to
  if (!other_socket.empty())
    if (auto listening = os::listen_unix(other_socket)) other = std::move(*listening);
  if (!listener) return 2;
  os::notify_ready();
  for (;;) {
    auto connection = os::accept_unix(listener->get(), Deadline::in_ms(600'000));
    if (connection) (void)obey(program, connection->get(), os::ServingMode::kDaemon);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--exit-42") == 0) return 42;
  if (argc > 1 && std::strcmp(argv[1], "--answer-on-3") == 0)
    return os::send_frame(3, as_bytes("SUCCEEDED: a new program answers"), {}, Deadline::in_ms(1000)) ? 0 : 1;
  if (!os::harden_process()) return 1;
  std::string program = argv[0];
  for (const char* name : {"--control-socket", "--socket"})
    if (std::string socket = flag(argc, argv, name); !socket.empty())
      return obey_as_daemon(program, socket, flag(argc, argv, "--kvxfer-socket"));
  auto connection = os::activation_connection();
  if (!connection) return 3;
  for (const char* name : {"--app-socket", "--decap-socket"}) {
    std::string path = flag(argc, argv, name);
    if (path.empty()) continue;
    auto made = os::connect_unix(path, Deadline::in_ms(1000));
    if (!made) return 4;
    edges.push_back(std::move(*made));
  }
  return obey(program, connection->get(), os::ServingMode::kPerRequest);
}
