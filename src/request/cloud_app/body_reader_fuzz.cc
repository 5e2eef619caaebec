// A hostile body, cut anywhere: no crash, and whatever is accepted is one request within the limits.
#include <algorithm>

#include "request/cloud_app/body_reader.h"
#include "request/cloud_app/request_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  using namespace tie::request::app;
  if (size == 0) return 0;
  size_t piece = 1 + data[0];
  BodyReader reader;
  for (size_t at = 1; at < size; at += piece)
    if (!reader.feed(ByteView(data + at, std::min(piece, size - at)))) return 0;
  auto request = reader.finish();
  if (request) (void)check_sampling(request->sampling(), 1000, 4096);
  return 0;
}
