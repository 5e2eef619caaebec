// A runtime that was taken over says anything on its connection, cut anywhere: no crash, and no message over the limit.
#include <algorithm>

#include "request/cloud_app/grpc_call.h"
#include "request/cloud_app/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  using namespace tie::request::app;
  if (size == 0) return 0;
  auto call = GrpcCall::create();
  if (!call) return 0;
  auto drop_output = [&] {
    for (ByteView out; !(out = (*call)->output()).empty();) (*call)->sent(out.size());
  };
  (void)(*call)->start("/a.Service/Method", "question", 1000);
  drop_output();
  size_t piece = 1 + data[0];
  for (size_t at = 1; at < size; at += piece) {
    if (!(*call)->feed(ByteView(data + at, std::min(piece, size - at)))) return 0;
    for (;;) {
      auto message = (*call)->next_message();
      if (!message) return 0;
      if (!*message) break;
      tie_check((*call)->buffered() <= size + (64u << 10), "what was taken is not kept");
      tie_check((*message)->size() <= static_cast<size_t>(kMaxRuntimeMessageBytes), "the limit holds");
    }
    drop_output();
  }
  return 0;
}
