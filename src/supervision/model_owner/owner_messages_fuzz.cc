// Bytes of a hostile client, cut into frames anywhere, at a model's door or the operator's: the server must answer or
// close, never end.
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "os/unix_socket.h"
#include "supervision/model_owner/owner_server.h"

namespace {

using namespace tie;

// One server for the whole run; each input is one connection.
struct Server {
  Server() {
    char folder[] = "/tmp/tie-owner-fuzz-XXXXXX";
    if (::mkdtemp(folder) == nullptr) std::abort();
    path = std::string(folder) + "/owner.sock";
    std::filesystem::create_directories(std::string(folder) + "/models/m");
    store = std::make_unique<owner::ModelStore>(
        folder, [](const std::string& name, const std::string&) -> Result<owner::LoadedModel> {
          owner::LoadedModel model;
          model.name = name;
          return model;
        });
    if (!store->scan()) std::abort();
    store->load();
    server = std::make_unique<owner::OwnerServer>(*store, owner::OwnerServerOptions{.message_ms = 50});
    model_path = std::string(folder) + "/weights/m/" + owner::kModelSocketFile;
    if (!server->serve_models_in(std::string(folder) + "/weights")) std::abort();
    listener = std::move(os::listen_unix(path).value());
    stop = std::move(os::socket_pair().value());
    std::thread([this] { (void)server->run(listener.get(), stop.first.get()); }).detach();
  }
  std::string path, model_path;
  std::unique_ptr<owner::ModelStore> store;
  std::unique_ptr<owner::OwnerServer> server;
  os::Fd listener;
  std::pair<os::Fd, os::Fd> stop;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Server& server = *new Server;
  const bool as_operator = size > 0 && data[size - 1] % 4 == 0;
  auto socket = os::connect_unix(as_operator ? server.path : server.model_path, Deadline::in_ms(30'000));
  if (!socket) std::abort();
  (void)os::write_all(socket->get(), {data, size}, Deadline::in_ms(1000));
  ::shutdown(socket->get(), SHUT_WR);
  while (os::receive_frame(socket->get(), 1 << 20, 2, Deadline::in_ms(2000))) {
  }
  return 0;
}
