// Whatever a helper sends: no crash, and nothing is accepted that the issuer never signed.
#include <unistd.h>

#include "keys/token_spentd/spend_desk.h"
#include "keys/tokens/testing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  static const tokens::testing::Issuer issuer;
  static spentd::SpendDesk desk(tokens::TokenGate(issuer.file(0, 1000), Bytes(tokens::kContextBytes, 7)),
                                *keys::ReplayGuard::open("/dev/shm/tie-fuzz-spend-" + std::to_string(::getpid()), 16));
  static const size_t lost = desk.restore(1);
  tie_check(lost == 0, "a new record can be begun");
  v1::SpendRequest request;
  if (request.ParseFromArray(data, static_cast<int>(size)))
    tie_check(!desk.spend(request, 1).accepted(), "only the issuer makes tokens");
  return 0;
}
