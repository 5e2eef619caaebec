// Clear parameters and client messages out of hostile bytes: no crash, and nothing out of bounds is accepted.
#include "request/cloudboardd/invoke_order.h"
#include "request/cloudboardd/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  using namespace tie::request::cloudboard;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto parsed = parse_clear_parameters(text);
  if (parsed && (parsed->key_id().size() != kKeyIdBytes || parsed->encapsulated_key().size() > kMaxEncBytes ||
                 parsed->request_id().size() != 32))
    std::abort();
  v1::InvokeRequest message;
  InvokeOrder order;
  if (message.ParseFromArray(data, static_cast<int>(size))) {
    bool first_is_setup = message.has_setup();
    if (order.next(message) && !first_is_setup) std::abort();
  }
  return 0;
}
