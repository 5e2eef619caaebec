#include "request/cloud_app/runtime_message.h"

#include <bit>
#include <cstring>

namespace tie::request::app {
namespace {

static_assert(std::endian::native == std::endian::little, "raw tensor contents are little-endian");

void add_input(inference::ModelInferRequest& out, const char* name, const char* datatype, int64_t elements,
               std::string contents) {
  auto* tensor = out.add_inputs();
  tensor->set_name(name);
  tensor->set_datatype(datatype);
  tensor->add_shape(elements);
  out.add_raw_input_contents(std::move(contents));
}

void add_bytes(inference::ModelInferRequest& out, const char* name, std::string_view value) {
  auto length = static_cast<uint32_t>(value.size());
  std::string contents(sizeof length + value.size(), '\0');
  std::memcpy(contents.data(), &length, sizeof length);
  std::memcpy(contents.data() + sizeof length, value.data(), value.size());
  add_input(out, name, "BYTES", 1, std::move(contents));
}

bool read_int32(const std::string& raw, int32_t& out) {
  if (raw.size() != sizeof out) return false;
  std::memcpy(&out, raw.data(), sizeof out);
  return true;
}

// The single element of a BYTES tensor.
bool read_bytes(const std::string& raw, std::string_view& out) {
  uint32_t length = 0;
  if (raw.size() < sizeof length) return false;
  std::memcpy(&length, raw.data(), sizeof length);
  if (raw.size() != sizeof length + length) return false;
  out = std::string_view(raw).substr(sizeof length);
  return true;
}

template <typename Message>
bool read_message(const std::string& raw, Message& out) {
  std::string_view bytes;
  return read_bytes(raw, bytes) && out.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

bool read_tensor(const std::string& name, const std::string& raw, RuntimeEvent& out) {
  if (name == "token_ids") {
    if (raw.size() % sizeof(int32_t) != 0) return false;
    out.tokens.resize(raw.size() / sizeof(int32_t));
    if (!out.tokens.empty()) std::memcpy(out.tokens.data(), raw.data(), raw.size());
    return true;
  }
  if (name == "sample_index") return read_int32(raw, out.sample);
  if (name == "stop_trim_bytes") {
    int32_t trim = 0;
    if (!read_int32(raw, trim) || trim < 0) return false;
    out.stop_trim_bytes = static_cast<uint32_t>(trim);
    return true;
  }
  if (name == "logprobs") return read_message(raw, out.logprobs);
  if (name == "prompt_logprobs") return read_message(raw, out.prompt_logprobs);
  if (name == "finish") {
    std::string_view word;
    if (!read_bytes(raw, word)) return false;
    out.finish = word;
    return true;
  }
  if (name == "usage") {
    out.has_usage = read_message(raw, out.usage);
    return out.has_usage;
  }
  return true;  // a later runtime may say more
}

// "NAME: sentence", as the runtime writes its errors.
Refusal refusal_of(const std::string& text) {
  size_t colon = text.find(": ");
  std::string name = text.substr(0, colon);
  for (int i = 1; i <= static_cast<int>(Code::kIo); ++i) {
    const ErrorInfo& info = error_info(static_cast<Code>(i));
    if (name == info.name) return {info.code, colon == std::string::npos ? info.sentence : text.substr(colon + 2)};
  }
  return {Code::kInternal, error_info(Code::kInternal).sentence};
}

}  // namespace

void build_request(const RuntimeCall& call, inference::ModelInferRequest& out) {
  out.set_model_name(call.model);
  out.set_id(call.request_id);
  add_input(out, "token_ids", "INT32", static_cast<int64_t>(call.prompt.size()),
            std::string(reinterpret_cast<const char*>(call.prompt.data()), call.prompt.size_bytes()));
  add_bytes(out, "sampling", call.sampling->SerializeAsString());
  if (!call.grammar.empty()) add_bytes(out, "grammar", call.grammar);
  if (!call.prompt_id.empty()) add_bytes(out, "prompt_id", call.prompt_id);
  if (!call.kv_import.empty()) add_bytes(out, "kv_import", call.kv_import);
  if (!call.kv_export.empty()) add_bytes(out, "kv_export", call.kv_export);
  (*out.mutable_parameters())["deadline_ms"].set_int64_param(call.deadline_ms);
}

Checked<RuntimeEvent> read_response(const inference::ModelStreamInferResponse& response) {
  if (!response.error_message().empty()) return std::unexpected(refusal_of(response.error_message()));
  const auto& infer = response.infer_response();
  RuntimeEvent out;
  if (infer.outputs_size() != infer.raw_output_contents_size())
    return refuse(Code::kInternal, "The runtime's answer is malformed.");
  for (int i = 0; i < infer.outputs_size(); ++i)
    if (!read_tensor(infer.outputs(i).name(), infer.raw_output_contents(i), out))
      return refuse(Code::kInternal, "The runtime's answer is malformed.");
  auto final = infer.parameters().find("triton_final_response");
  out.final = final != infer.parameters().end() && final->second.bool_param();
  return out;
}

}  // namespace tie::request::app
