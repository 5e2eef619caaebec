// Whatever a helper sends: no crash, and nothing is accepted that the issuer never signed.
#include <cstdlib>
#include <filesystem>

#include "keys/token_spentd/spend_desk.h"
#include "keys/tokens/testing.h"

namespace {

// In memory, for this run alone: a record that an earlier one left would be restored.
struct Folder {
  Folder() {
    if (::mkdtemp(path) == nullptr) std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  char path[32] = "/dev/shm/tie-fuzz-spend-XXXXXX";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  static const Folder folder;
  static const tokens::testing::Issuer issuer;
  static spentd::SpendDesk desk(tokens::TokenGate(issuer.file(0, 1000), Bytes(tokens::kContextBytes, 7)),
                                *keys::ReplayGuard::open(folder.path, 16));
  static const size_t lost = desk.restore(1);
  tie_check(lost == 0, "a new record can be begun");
  v1::SpendRequest request;
  if (request.ParseFromArray(data, static_cast<int>(size)))
    tie_check(!desk.spend(request, 1).accepted(), "only the issuer makes tokens");
  return 0;
}
