// For tests: a tiny model (256 bytes, a few merges, two control tokens) with its asset folder, and a runtime whose
// words are scripted.
#pragma once
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/byte_buckets.h"
#include "base/random.h"
#include "grpc_service.grpc.pb.h"
#include "inference.pb.h"
#include "request/cloud_app/served_model.h"
#include "runtime.pb.h"
#include "text/model_assets.h"

namespace tie::request::app::testing {

// GPT-2's printable stand-in for a byte, as byte-level vocabularies write it.
inline std::string stand_in(int byte) {
  int code = byte;
  bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
  if (!plain) {
    int shift = 0;
    for (int b = 0; b < byte; ++b)
      shift += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255));
    code = 256 + shift;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

constexpr int32_t kEnd = 256, kStart = 257;  // "<|end|>", "<|start|>"

// Token id of a byte is the byte.
inline std::string tokenizer_json() {
  nlohmann::json vocab;
  for (int b = 0; b < 256; ++b) vocab[stand_in(b)] = b;
  auto special = [](int id, const char* text) {
    return nlohmann::json{{"id", id},        {"content", text}, {"special", true},     {"normalized", false},
                          {"lstrip", false}, {"rstrip", false}, {"single_word", false}};
  };
  nlohmann::json root = {
      {"version", "1.0"},
      {"added_tokens", {special(kEnd, "<|end|>"), special(kStart, "<|start|>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return root.dump();
}

constexpr const char* kTemplate =
    "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt "
    "%}<|start|>assistant:{% endif %}";

struct TinyAssets {
  std::string root = (std::filesystem::temp_directory_path() / ("tie-app-" + random_hex(6))).string();
  explicit TinyAssets(const std::vector<std::string>& names = {"tiny"}, const std::string& extra_toml = "",
                      int context_tokens = 200) {
    auto image = text::compile_vocab_image_from_json(tokenizer_json(), R"({"eos_token": "<|end|>"})");
    tie_check(image.has_value(), image ? "" : image.error().message.c_str());
    for (const std::string& name : names) {
      std::string folder = root + "/models/" + name;
      std::filesystem::create_directories(folder);
      std::filesystem::create_directories(root + "/runtime/" + name);
      std::ofstream(folder + "/tokenizer.img", std::ios::binary) << to_string(*image);
      std::ofstream(folder + "/template.jinja") << kTemplate;
      std::ofstream(folder + "/model.toml") << "context_tokens = " << context_tokens << "\nmodel_id = \"aabb\"\n"
                                            << extra_toml;
    }
  }
  ~TinyAssets() { std::filesystem::remove_all(root); }
  std::unique_ptr<ServedModel> model(const std::string& name = "tiny") const {
    auto loaded = load_model(root + "/models/" + name, name);
    tie_check(loaded.has_value(), loaded ? "" : loaded.error().message.c_str());
    return std::move(*loaded);
  }
  std::string socket(const std::string& name = "tiny") const { return root + "/runtime/" + name + "/runtime.sock"; }
};

inline v1::InferenceRequest chat(const std::string& text, const std::string& model = "tiny") {
  v1::InferenceRequest request;
  request.set_model(model);
  auto* message = request.mutable_conversation()->add_messages();
  message->set_role("user");
  message->add_parts()->set_text(text);
  return request;
}

// ---- the runtime's words ----

inline inference::ModelStreamInferResponse response(const std::vector<int32_t>& tokens, const std::string& finish = "",
                                                    int32_t sample = 0, int32_t trim = 0) {
  inference::ModelStreamInferResponse out;
  auto& r = *out.mutable_infer_response();
  auto add = [&](const char* name, const char* type, int64_t n, std::string raw) {
    auto* tensor = r.add_outputs();
    tensor->set_name(name);
    tensor->set_datatype(type);
    tensor->add_shape(n);
    r.add_raw_output_contents(std::move(raw));
  };
  add("sample_index", "INT32", 1, std::string(reinterpret_cast<const char*>(&sample), 4));
  add("token_ids", "INT32", static_cast<int64_t>(tokens.size()),
      std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4));
  add("stop_trim_bytes", "INT32", 1, std::string(reinterpret_cast<const char*>(&trim), 4));
  auto length = static_cast<uint32_t>(finish.size());
  add("finish", "BYTES", 1, std::string(reinterpret_cast<const char*>(&length), 4) + finish);
  return out;
}

inline void make_final(inference::ModelStreamInferResponse& out, uint32_t prompt_tokens, uint32_t completion_tokens) {
  v1::RuntimeUsage usage;
  usage.set_prompt_tokens(prompt_tokens);
  usage.set_completion_tokens(completion_tokens);
  std::string text = usage.SerializeAsString();
  auto length = static_cast<uint32_t>(text.size());
  auto& r = *out.mutable_infer_response();
  r.add_outputs()->set_name("usage");
  r.add_raw_output_contents(std::string(reinterpret_cast<const char*>(&length), 4) + text);
  (*r.mutable_parameters())["triton_final_response"].set_bool_param(true);
}

inline std::vector<int32_t> bytes_of(std::string_view text) {
  std::vector<int32_t> out;
  for (char c : text) out.push_back(static_cast<uint8_t>(c));
  return out;
}

class FakeRuntime final : public inference::GRPCInferenceService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<inference::ModelStreamInferResponse, inference::ModelInferRequest>;
  using Script = std::function<void(const inference::ModelInferRequest&, Stream&, grpc::ServerContext&)>;

  FakeRuntime(const std::string& socket, Script script) : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    tie_check(server_ != nullptr, "the fake runtime listens");
  }
  ~FakeRuntime() override { die(); }
  void die() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::vector<inference::ModelInferRequest> seen;

 private:
  grpc::Status ModelStreamInfer(grpc::ServerContext* context, Stream* stream) override {
    inference::ModelInferRequest request;
    if (!stream->Read(&request)) return grpc::Status::CANCELLED;
    seen.push_back(request);
    script_(request, *stream, *context);
    return grpc::Status::OK;
  }
  Script script_;
  std::unique_ptr<grpc::Server> server_;
};

// The event inside a padded message; checks the padding on the way.
inline v1::InferenceEvent event_of(ByteView padded) {
  tie_check(is_bucket(padded.size()), "every event is in the bucket set");
  v1::ResponseMessage message;
  tie_check(message.ParseFromArray(padded.data() + 4, static_cast<int>(padded.size() - 4)), "an event parses");
  return message.event();
}

}  // namespace tie::request::app::testing
