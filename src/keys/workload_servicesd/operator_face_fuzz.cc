// Whatever comes on the operator's socket: no crash, a reply of the listed statuses, nothing destroyed that was not
// named.
#include "keys/workload_servicesd/operator_face.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  static wsd::KeyRing ring;
  static wsd::OperatorFace face({{}, "software", true, 1, 1}, ring,
                                {[](crypto::KemId) { tie_check(false, "there is no suite to rotate"); },
                                 [](const crypto::Digest&) { tie_check(false, "there is no key to destroy"); }});
  const auto request = wsd::parse_http(as_text(ByteView(data, size)));
  if (!request || !*request) return 0;
  tie_check((*request)->body.size() <= wsd::kMaxHttpBodyBytes, "bodies are bounded");
  for (const bool may_act : {false, true}) {
    const int status = face.answer(**request, may_act).status;
    tie_check(status == 200 || status == 400 || status == 401 || status == 403 || status == 404, "a listed status");
  }
  return 0;
}
