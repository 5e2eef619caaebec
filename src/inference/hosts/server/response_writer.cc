#include "inference/hosts/server/response_writer.h"

#include <cstring>

#include "base/secret_bytes.h"
#include "inference/hosts/server/message_bytes.h"
#include "runtime.pb.h"

namespace tie::runtime_host {
namespace {

using inference::ModelInferResponse;

void add_tensor(ModelInferResponse& r, const char* name, const char* datatype, int64_t elements, std::string contents) {
  auto* tensor = r.add_outputs();
  tensor->set_name(name);
  tensor->set_datatype(datatype);
  tensor->add_shape(elements);
  r.add_raw_output_contents(std::move(contents));
}

void add_int32(ModelInferResponse& r, const char* name, const int32_t* values, size_t n) {
  add_tensor(r, name, "INT32", static_cast<int64_t>(n),
             std::string(reinterpret_cast<const char*>(values), n * sizeof(int32_t)));
}

void add_bytes(ModelInferResponse& r, const char* name, std::string_view value) {
  std::string contents(sizeof(uint32_t) + value.size(), '\0');
  auto length = static_cast<uint32_t>(value.size());
  std::memcpy(contents.data(), &length, sizeof length);
  std::memcpy(contents.data() + sizeof length, value.data(), value.size());
  add_tensor(r, name, "BYTES", 1, std::move(contents));
}

std::string logprobs_text(const std::vector<engine::TokenLogprobs>& entries) {
  v1::RuntimeLogprobs message;
  for (const auto& e : entries) {
    auto* entry = message.add_entries();
    entry->set_token_id(e.token);
    entry->set_logprob(e.logprob);
    for (uint32_t i = 0; i < e.n_top; ++i) {
      auto* top = entry->add_top();
      top->set_token_id(e.top[i].token);
      top->set_logprob(e.top[i].logprob);
    }
  }
  std::string out = message.SerializeAsString();
  wipe(message);
  return out;
}

void add_logprobs(ModelInferResponse& r, const char* name, const std::vector<engine::TokenLogprobs>& entries) {
  std::string text = logprobs_text(entries);
  add_bytes(r, name, text);
  secure_zero(text);
}

std::string usage_text(const engine::Usage& u) {
  v1::RuntimeUsage message;
  message.set_prompt_tokens(u.prompt_tokens);
  message.set_completion_tokens(u.completion_tokens);
  message.set_prefix_tokens(u.prefix_tokens);
  message.set_imported_tokens(u.imported_tokens);
  message.set_exported_tokens(u.exported_tokens);
  message.set_import_refused(u.import_refused);
  message.set_drafted_tokens(u.drafted_tokens);
  message.set_accepted_draft_tokens(u.accepted_draft_tokens);
  message.set_queue_us(u.queue_us);
  message.set_first_token_us(u.first_token_us);
  return message.SerializeAsString();
}

}  // namespace

void wipe(ResponseParts& parts) {
  secure_zero(parts.tokens.data(), parts.tokens.size() * sizeof(int32_t));
  for (auto* entries : {&parts.logprobs, &parts.prompt_logprobs})
    secure_zero(entries->data(), entries->size() * sizeof(engine::TokenLogprobs));
}

void wipe(v1::RuntimeLogprobs& message) {
  for (auto& entry : *message.mutable_entries()) {
    entry.set_token_id(0);
    entry.set_logprob(0);
    for (auto& top : *entry.mutable_top()) {
      top.set_token_id(0);
      top.set_logprob(0);
    }
  }
}

std::string error_text(const Error& error) {
  return std::string(error_info(error.code).name) + ": " + error.message;
}

void ResponseWriter::fill(const std::string& request_id, const ResponseParts& parts, uint32_t outputs,
                          bool with_logprobs) {
  auto& r = *response_.mutable_infer_response();
  r.set_model_name(model_);
  r.set_model_version("1");
  r.set_id(request_id);
  auto sample = static_cast<int32_t>(parts.sample), trim = static_cast<int32_t>(parts.stop_trim_bytes);
  if (outputs & kSampleIndex) add_int32(r, "sample_index", &sample, 1);
  if (outputs & kTokenIds) add_int32(r, "token_ids", parts.tokens.data(), parts.tokens.size());
  if (outputs & kStopTrimBytes) add_int32(r, "stop_trim_bytes", &trim, 1);
  if ((outputs & kLogprobs) && with_logprobs) add_logprobs(r, "logprobs", parts.logprobs);
  if ((outputs & kPromptLogprobs) && !parts.prompt_logprobs.empty())
    add_logprobs(r, "prompt_logprobs", parts.prompt_logprobs);
  if (outputs & kFinish) add_bytes(r, "finish", engine::finish_name(parts.finish));
  if (!parts.final) return;
  if (outputs & kUsage) add_bytes(r, "usage", usage_text(parts.usage));
  (*r.mutable_parameters())["triton_final_response"].set_bool_param(true);
}

grpc::ByteBuffer ResponseWriter::serialize() {
  auto bytes = to_byte_buffer(response_);
  for (auto& raw : *response_.mutable_infer_response()->mutable_raw_output_contents()) secure_zero(raw);
  response_.Clear();
  return bytes;
}

grpc::ByteBuffer ResponseWriter::write(const std::string& request_id, const ResponseParts& parts, uint32_t outputs,
                                       bool with_logprobs) {
  fill(request_id, parts, outputs, with_logprobs);
  return serialize();
}

grpc::ByteBuffer ResponseWriter::write_error(const std::string& request_id, const Error& error,
                                             const ResponseParts* parts) {
  response_.set_error_message(error_text(error));
  if (parts) {
    fill(request_id, *parts, kAllOutputs, false);
  } else {
    response_.mutable_infer_response()->set_id(request_id);
    (*response_.mutable_infer_response()->mutable_parameters())["triton_final_response"].set_bool_param(true);
  }
  return serialize();
}

}  // namespace tie::runtime_host
