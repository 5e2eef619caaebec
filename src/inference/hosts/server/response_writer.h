// From what the engine produced to one serialized ModelStreamInferResponse. README.md in this folder documents the
// tensors. Pure; one writer per stream keeps its buffers. Cost: one serialization into the slice that goes to the wire,
// no other copy.
#pragma once
#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <vector>

#include "grpc_service.pb.h"
#include "inference/engine/output_sink.h"
#include "inference/hosts/server/request_parser.h"

namespace tie::v1 {
class RuntimeLogprobs;
}

namespace tie::runtime_host {

// What has gathered for one sample since the last response, or a request's end.
struct ResponseParts {
  uint32_t sample = 0;
  std::vector<int32_t> tokens;
  std::vector<engine::TokenLogprobs> logprobs;
  std::vector<engine::TokenLogprobs> prompt_logprobs;
  uint32_t stop_trim_bytes = 0;
  engine::Finish finish = engine::Finish::kNone;
  bool final = false;  // the request's last response: carries usage
  engine::Usage usage;
};

// Overwrite what they say of prompt and answer: a message that is freed leaves its numbers in memory.
void wipe(ResponseParts& parts);
void wipe(v1::RuntimeLogprobs& message);

class ResponseWriter {
 public:
  explicit ResponseWriter(std::string model) : model_(std::move(model)) {}

  grpc::ByteBuffer write(const std::string& request_id, const ResponseParts& parts, uint32_t outputs,
                         bool with_logprobs);
  // error_message is "NAME: sentence". With parts: a request that ends in mid-generation; they give finish, usage and
  // the final mark.
  grpc::ByteBuffer write_error(const std::string& request_id, const Error& error, const ResponseParts* parts);

 private:
  void fill(const std::string& request_id, const ResponseParts& parts, uint32_t outputs, bool with_logprobs);
  grpc::ByteBuffer serialize();

  const std::string model_;
  inference::ModelStreamInferResponse response_;
};

std::string error_text(const Error& error);  // "NAME: sentence"

}  // namespace tie::runtime_host
