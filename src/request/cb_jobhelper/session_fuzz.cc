// Messages of hostile peers in any order and content: no crash, and nothing to the app that was not authenticated.
#include <fuzzer/FuzzedDataProvider.h>

#include "request/cb_jobhelper/session.h"

namespace {
struct Nowhere : tie::request::jobhelper::Peers {
  bool app_heard = false;
  void to_cloudboard(const tie::v1::FromHelper&) override {}
  void to_app(const tie::v1::ToApp& message) override { app_heard |= message.has_input(); }
  void to_keys(const tie::v1::DecapRequest&) override {}
};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  Nowhere peers;
  tie::request::jobhelper::Session session(peers, [](tie::ByteView token) { return token.size() == 4; });
  while (in.remaining_bytes() > 0 && !session.done()) {
    int source = in.ConsumeIntegralInRange(0, 5);
    std::string bytes = in.ConsumeRandomLengthString();
    tie::v1::ToHelper to_helper;
    tie::v1::DecapReply reply;
    tie::v1::FromApp from_app;
    if (source == 0 && to_helper.ParseFromString(bytes)) session.from_cloudboard(to_helper);
    if (source == 1 && reply.ParseFromString(bytes)) session.from_keys(reply);
    if (source == 2 && from_app.ParseFromString(bytes)) session.from_app(from_app);
    if (source == 3) session.lost_app();
    if (source == 4) session.lost_keys();
    if (source == 5) session.give_up();
  }
  if (peers.app_heard) std::abort();  // a fuzzer cannot forge a sealed chunk
  return 0;
}
