// Five commands of TPM 2.0 with the parameters that this product uses: the SHA-256 bank, an ECDSA P-256 key that signs
// only what the TPM made itself, no authorization values. One thread. Errors: kIo with the TPM's code, kCorrupt for a
// response of another layout. Source: TPM 2.0 Library, part 3.
#pragma once
#include <utility>
#include <vector>

#include "crypto/sha256.h"
#include "keys/tpm/tpm_link.h"

namespace tie::tpm {

using Pcrs = std::vector<std::pair<uint8_t, crypto::Digest>>;

struct AttestationKey {
  uint32_t handle = 0;
  Bytes point;  // x || y
};

struct SignedQuote {
  Bytes attest, signature;  // TPMS_ATTEST; r || s
};

// The same key each time, as long as the TPM is not cleared: derived from the owner hierarchy's seed.
Result<AttestationKey> create_attestation_key(TpmLink& link);
Result<void> flush(TpmLink& link, uint32_t handle);
Result<SignedQuote> quote(TpmLink& link, uint32_t handle, const crypto::Digest& nonce,
                          const std::vector<uint8_t>& pcrs);
Result<Pcrs> read_pcrs(TpmLink& link, const std::vector<uint8_t>& pcrs);
Result<void> extend_pcr(TpmLink& link, uint8_t pcr, const crypto::Digest& digest);

}  // namespace tie::tpm
