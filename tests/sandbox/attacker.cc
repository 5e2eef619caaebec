// A program in the victim's place: the launcher starts it under the product's name with the product's profile. It makes the victim's own
// connections and then does as it is told: frame "serve" enters the victim's serving mode, "whoami" tells where it runs, and each frame
// "ATTACK word..." (descriptors may come with it) is answered with "stopped" or "SUCCEEDED: what".
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

std::string answer_to(const std::string& program, os::Frame frame) {
  std::istringstream words(to_string(frame.payload));
  std::string name, word;
  words >> name;
  if (name == "whoami") {
    static int marker = 0x71e;
    std::ostringstream out;
    out << ::getpid() << " " << &marker << " uid " << ::getuid() << " program " << program << " fds" << open_descriptors();
    return out.str();
  }
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
    std::string answer = "ok";
    if (to_string(frame->payload) == "serve") {
      serving = serving || os::enter_serving_mode(mode).has_value();
      if (!serving) return 5;
    } else {
      answer = answer_to(program, std::move(*frame));
    }
    if (!os::send_frame(connection, as_bytes(answer), {}, Deadline::in_ms(1000))) return 0;
  }
}

// As a daemon: the test reaches it over the socket that the victim serves.
int obey_as_daemon(const std::string& program, const std::string& socket) {
  auto listener = os::listen_unix(socket);
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
    if (std::string socket = flag(argc, argv, name); !socket.empty()) return obey_as_daemon(program, socket);
  auto connection = os::activation_connection();
  if (!connection) return 3;
  std::vector<os::Fd> edges;
  for (const char* name : {"--app-socket", "--decap-socket"}) {
    std::string path = flag(argc, argv, name);
    if (path.empty()) continue;
    auto made = os::connect_unix(path, Deadline::in_ms(1000));
    if (!made) return 4;
    edges.push_back(std::move(*made));
  }
  return obey(program, connection->get(), os::ServingMode::kPerRequest);
}
