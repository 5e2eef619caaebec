// The gRPC server of afm-runtime on its unix socket: Triton's inference interface and grpc.health.v1.
// Life: start() listens and answers "not ready"; serve() gives it an engine; drain() lets what is in flight finish; the
// destructor ends the rest.
#pragma once
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "inference/engine/engine_core.h"
#include "inference/hosts/server/registered_prompts.h"

namespace tie::runtime_host {

class KvxferService;

class RuntimeServer {
 public:
  // Removes a stale socket at `socket_path` (at most 107 bytes). kIo when it cannot listen.
  static Result<std::unique_ptr<RuntimeServer>> start(const std::string& model, const std::string& socket_path);
  ~RuntimeServer();

  // Starts the engine's thread and turns ready. kvxfer: null, or it outlives the server.
  void serve(std::unique_ptr<engine::EngineCore> core, KvxferService* kvxfer = nullptr, RegisteredPrompts prompts = {});
  // Until serve(): what callers hear instead of "still starting". `why` is a literal; the probe knows "needs_warmup".
  void set_not_ready(const char* why);
  // Not ready from now on: new calls are UNAVAILABLE, new requests NOT_READY. Returns when nothing is in flight, or at
  // the deadline.
  void drain(Deadline deadline);

 private:
  struct State;
  explicit RuntimeServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tie::runtime_host
