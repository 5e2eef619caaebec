// tie-cloud-app as an object: warms up, takes one request from cb_jobhelper, runs it against the runtime, answers,
// ends. Called by main, and by tests over socket pairs. Threads: one. Source: spec,
// "Inference application".
#pragma once
#include <map>
#include <memory>
#include <string>

#include "cloud_app.pb.h"
#include "request/cloud_app/answer.h"
#include "request/cloud_app/conversation_cache.h"
#include "request/cloud_app/runtime_stream.h"
#include "request/cloud_app/served_model.h"
#include "request/frame_link/frame_link.h"

namespace tie::request::app {

struct Config {
  std::string assets;       // ASSETS/models/NAME/..., ASSETS/prompts/ID.json
  std::string runtime_dir;  // DIR/NAME/runtime.sock
  std::string kvxfer_dir;   // DIR/NAME/kvxfer.sock; empty: nothing is kept from one turn to the next
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
  ConversationCache::Handles begin_cache(v1::InferenceRequest& request, std::span<const int32_t> prompt,
                                         uint64_t most_tokens);
  void note(const RuntimeEvent& event);
  bool take_derived_key(os::Frame& frame);
  void let_answer_pass();
  void finish_cache();
  void send(const v1::FromApp& message);
  void send_event(const Bytes& padded);
  void end(v1::FromApp::EndOfResponse::Status status);

  FrameLink helper_;
  ServedModels models_;
  std::string assets_;
  std::map<std::string, std::unique_ptr<RuntimeStream>> runtimes_;
  std::map<std::string, std::unique_ptr<KvLink>> kv_links_;
  os::Fd store_;  // cache_stored, as cloudboardd connected it for this request
  std::unique_ptr<ConversationCache> cache_;
  std::vector<int32_t> tokens_;  // the first sample's: prompt and answer, as far as it has come
  uint32_t exported_tokens_ = 0;
  bool key_asked_ = false;
  std::string request_id_;
  bool helper_gone_ = false;
};

}  // namespace tie::request::app
