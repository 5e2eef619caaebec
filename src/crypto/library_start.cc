#include "crypto/library_start.h"

#include <openssl/core_dispatch.h>
#include <openssl/crypto.h>
#include <openssl/provider.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/result.h"

// The start of libcrypto's default provider, in its archive. The shared library does not export it: a program that
// links that one (sanitizer builds, tests) has the whole provider.
extern "C" __attribute__((weak)) int ossl_default_provider_init(const OSSL_CORE_HANDLE* core, const OSSL_DISPATCH* in,
                                                                const OSSL_DISPATCH** out, void** context);

namespace tie::crypto {
namespace {

// What opening a request, sealing a cache and judging a token take. libcrypto makes an object of every algorithm that
// a provider offers for an operation, when the first of them is asked for: of 200 ciphers for one.
constexpr std::array<std::string_view, 5> kKept = {"AES-256-GCM", "SHA2-256", "SHA2-384", "HMAC", "RSA"};
constexpr size_t kOperations = OSSL_OP__HIGHEST + 1, kMaxFunctions = 16;

OSSL_FUNC_provider_query_operation_fn* query_all = nullptr;
std::array<OSSL_DISPATCH, kMaxFunctions> functions;
std::array<std::array<OSSL_ALGORITHM, kKept.size() + 1>, kOperations> kept_algorithms;

const OSSL_ALGORITHM* query_kept(void* context, int operation, int* no_cache) {
  const OSSL_ALGORITHM* all = query_all(context, operation, no_cache);
  if (all == nullptr || static_cast<size_t>(operation) >= kOperations) return nullptr;
  auto& kept = kept_algorithms[static_cast<size_t>(operation)];
  size_t count = 0;
  for (; all->algorithm_names != nullptr && count < kKept.size(); ++all) {
    std::string_view names = all->algorithm_names;  // the first of them up to a colon is libcrypto's own
    if (std::ranges::find(kKept, names.substr(0, names.find(':'))) != kKept.end()) kept[count++] = *all;
  }
  kept[count] = {};
  return kept.data();
}

// The default provider, but for what it says that it has.
int start_provider(const OSSL_CORE_HANDLE* core, const OSSL_DISPATCH* in, const OSSL_DISPATCH** out, void** context) {
  const OSSL_DISPATCH* theirs = nullptr;
  if (ossl_default_provider_init(core, in, &theirs, context) != 1) return 0;
  size_t count = 0;
  for (; theirs->function_id != 0; ++theirs) {
    if (count + 1 == kMaxFunctions) return 0;
    functions[count] = *theirs;
    if (theirs->function_id == OSSL_FUNC_PROVIDER_QUERY_OPERATION) {
      query_all = OSSL_FUNC_provider_query_operation(theirs);
      functions[count].function = reinterpret_cast<void (*)()>(&query_kept);
    }
    ++count;
  }
  functions[count] = {};
  *out = functions.data();
  return query_all != nullptr ? 1 : 0;
}

}  // namespace

void start_library_for_one_request() {
  constexpr uint64_t kNothingExtra = OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT |
                                     OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS | OPENSSL_INIT_NO_ADD_ALL_CIPHERS |
                                     OPENSSL_INIT_NO_ADD_ALL_DIGESTS;
  tie_check(OPENSSL_init_crypto(kNothingExtra, nullptr) == 1, "libcrypto starts");
  if (ossl_default_provider_init == nullptr) return;
  // A provider that is loaded by name keeps the default one out.
  constexpr const char* kName = "tie-request";
  tie_check(
      OSSL_PROVIDER_add_builtin(nullptr, kName, start_provider) == 1 && OSSL_PROVIDER_load(nullptr, kName) != nullptr,
      "libcrypto's provider starts");
}

}  // namespace tie::crypto
