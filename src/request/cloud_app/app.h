// tie-cloud-app as an object: warms up, takes one request from cb_jobhelper, runs it against the runtime, answers,
// ends. Called by main, and by tests over socket pairs. Threads: one of its own (gRPC has some). Source: spec,
// "Inference application".
#pragma once
#include <map>
#include <memory>
#include <string>

#include "cloud_app.pb.h"
#include "request/cloud_app/answer.h"
#include "request/cloud_app/runtime_stream.h"
#include "request/cloud_app/served_model.h"
#include "request/frame_link/frame_link.h"

namespace tie::request::app {

struct Config {
  std::string assets;       // ASSETS/models/NAME/..., ASSETS/prompts/ID.json
  std::string runtime_dir;  // DIR/NAME/runtime.sock
};

class App {
 public:
  // Waits for Warmup on the helper's connection, then loads and connects everything. Nothing is connected after it, and
  // no file opened but that of a registered prompt which the request names.
  static Result<std::unique_ptr<App>> warm_up(os::Fd helper, const Config& config);

  // Says Ready, serves one request. Returns when the answer is out, or when the helper went away.
  Result<void> serve();

 private:
  App(os::Fd helper, ServedModels models, std::string assets);
  enum class Wait { kHelper, kRuntimeGone };
  Result<Wait> wait_idle();
  Result<v1::ToApp> next_message(int64_t timeout_ms);
  Checked<v1::InferenceRequest> read_request();
  Checked<void> run(v1::InferenceRequest& request);
  Checked<void> generate(RuntimeStream& runtime, Answer& answer, int64_t deadline_ms);
  Checked<void> listen_to_helper();
  void send(const v1::FromApp& message);
  void send_event(const Bytes& padded);
  void end(v1::FromApp::EndOfResponse::Status status);

  FrameLink helper_;
  ServedModels models_;
  std::string assets_;
  std::map<std::string, std::unique_ptr<RuntimeStream>> runtimes_;
  std::string request_id_;
  bool helper_gone_ = false;
};

}  // namespace tie::request::app
