// Whatever a node sends as a quote, or a TPM as a response: no crash, and decoding is exact.
#include <unistd.h>

#include "keys/tpm/tpm_signer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  const ByteView bytes(data, size);
  if (auto quote = attestation::decode_tpm_quote(bytes)) {
    const Bytes again = attestation::encode(*quote);
    tie_check(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), "decoding is exact");
    (void)attestation::check_quote(*quote, Bytes(64, 1), "a");
    (void)attestation::check_measured(*quote, {});
  }
  attestation::TpmQuote quote{Bytes(bytes.begin(), bytes.end()), Bytes(64, 1), Bytes(64, 1), {}, {}};
  (void)attestation::check_quote(quote, Bytes(64, 1), "a");
  return 0;
}
