#include "supervision/status_probe/canary.h"

#include <cstring>

#include "base/clock.h"
#include "grpc_service.grpc.pb.h"
#include "sampling.pb.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::probe {
namespace {

constexpr const char* kOverloaded = "OVERLOADED";  // how the runtime's stream errors begin when it is full

// A BYTES element on Triton's wire: 4-byte little-endian length, then the bytes.
std::string bytes_element(const std::string& value) {
  auto n = static_cast<uint32_t>(value.size());
  std::string out;
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(n >> shift & 0xff));
  return out + value;
}

void add_input(inference::ModelInferRequest& request, const char* name, const char* type, std::string raw) {
  auto& input = *request.add_inputs();
  input.set_name(name);
  input.set_datatype(type);
  input.add_shape(1);
  request.add_raw_input_contents(std::move(raw));
}

inference::ModelInferRequest canary_request(const CanaryOptions& options, uint64_t run) {
  inference::ModelInferRequest request;
  request.set_model_name(options.model);
  request.set_id("canary-" + std::to_string(run));
  std::string token(sizeof options.token_id, '\0');
  std::memcpy(token.data(), &options.token_id, sizeof options.token_id);  // little-endian, as Triton's wire wants it
  add_input(request, "token_ids", "INT32", std::move(token));
  v1::SamplingParams sampling;
  sampling.set_temperature(0);
  sampling.set_max_tokens(1);
  sampling.set_ignore_eos(true);
  add_input(request, "sampling", "BYTES", bytes_element(sampling.SerializeAsString()));
  add_input(request, "grammar", "BYTES", bytes_element(""));
  return request;
}

// Tokens carried by one response; their values do not matter.
size_t token_count(const inference::ModelInferResponse& response) {
  for (int i = 0; i < response.outputs_size(); ++i) {
    const auto& output = response.outputs(i);
    if (output.name() != "token_ids") continue;
    if (i < response.raw_output_contents_size()) return response.raw_output_contents(i).size() / sizeof(int32_t);
    return static_cast<size_t>(output.contents().int_contents_size());
  }
  return 0;
}

bool is_final(const inference::ModelInferResponse& response) {
  auto found = response.parameters().find("triton_final_response");
  return found != response.parameters().end() && found->second.bool_param();
}

}  // namespace

void Canary::cancel() {
  std::lock_guard lock(mutex_);
  if (running_ != nullptr) running_->TryCancel();
}

Result<void> Canary::converse(grpc::ClientContext& context) {
  auto stub = inference::GRPCInferenceService::NewStub(channel_);
  auto stream = stub->ModelStreamInfer(&context);
  bool sent = stream->Write(canary_request(options_, ++runs_));
  stream->WritesDone();
  size_t tokens = 0;
  bool finished = false;
  std::string refusal;
  inference::ModelStreamInferResponse message;
  while (sent && stream->Read(&message)) {
    if (!message.error_message().empty()) refusal = message.error_message();
    tokens += token_count(message.infer_response());
    finished = finished || is_final(message.infer_response());
  }
  grpc::Status status = stream->Finish();
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED || refusal.find(kOverloaded) != std::string::npos)
    return fail(Code::kOverloaded, "the runtime has no free slot");
  if (!status.ok()) return std::unexpected(rpc::to_error(status));
  if (!refusal.empty()) return fail(Code::kNotReady, refusal);
  if (tokens != 1)
    return fail(Code::kCorrupt, "the canary brought " + std::to_string(tokens) + " tokens instead of one");
  if (!finished) return fail(Code::kCorrupt, "the canary's stream ended without its final response");
  return {};
}

Result<int64_t> Canary::run(int64_t deadline_ms) {
  int64_t start = monotonic_ms();
  if (channel_ == nullptr) {
    TIE_TRY(channel_, rpc::connect(options_.runtime_socket, Deadline::in_ms(options_.connect_ms)));
  }
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(deadline_ms));
  {
    std::lock_guard lock(mutex_);
    running_ = &context;
  }
  auto outcome = converse(context);
  {
    std::lock_guard lock(mutex_);
    running_ = nullptr;
  }
  if (!outcome) {
    channel_.reset();
    return std::unexpected(std::move(outcome.error()));
  }
  return monotonic_ms() - start;
}

}  // namespace tie::probe
