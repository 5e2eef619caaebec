// A runtime that was taken over answers with anything: no crash.
#include "request/cloud_app/runtime_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  inference::ModelStreamInferResponse message;
  if (message.ParseFromArray(data, static_cast<int>(size))) (void)tie::request::app::read_response(message);
  return 0;
}
