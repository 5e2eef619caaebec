// Every constant of the sealed formats in one place: labels, sizes and limits. Changing one is a new protocol version.
// The formats themselves are written down byte by byte in docs/wire-format.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tie::crypto {

constexpr std::string_view kRequestInfoLabel = "tie/1 request";       // HPKE info of a request
constexpr std::string_view kRequestDekLabel = "tie/1 request dek";    // AAD of the sealed DEK
constexpr std::string_view kChunkKeyLabel = "tie/1 chunk key";        // HKDF info of the request's chunk key
constexpr std::string_view kChunkAadLabel = "tie/1 chunk";            // AAD of each request chunk
constexpr std::string_view kResponseExportLabel = "tie/1 response";   // HPKE exporter context of the response secret
constexpr std::string_view kResponseKeyLabel = "tie/1 response key";  // HKDF info of the response key
constexpr std::string_view kResponseNonceLabel = "tie/1 response nonce";
constexpr std::string_view kResponseAadLabel = "tie/1 response chunk";  // AAD of each response chunk
constexpr std::string_view kDeriveKeyLabel =
    "tie/1 derived key";  // HKDF info of the keys the helper derives for the app
constexpr std::string_view kDecapSealInfoLabel = "tie/1 decap seal";  // HPKE info of the seal to a binding key
constexpr std::string_view kReportDataLabel = "tie/1 report data";
constexpr std::string_view kKemClaimsLabel = "tie/1 kem claims";
constexpr std::string_view kWorkloadClaimsLabel = "tie/1 workload claims";
constexpr std::string_view kKeyServiceClaimsLabel = "tie/1 key service claims";
constexpr std::string_view kEvidenceSignatureLabel = "tie/1 evidence";
constexpr std::string_view kEpochChallengeLabel = "tie/1 epoch";

constexpr size_t kDekBytes = 32;
constexpr size_t kKeyIdBytes = 32;
constexpr size_t kSealedDekBytes = kDekBytes + 16;
constexpr size_t kChunkHeaderBytes = 2 + 12;  // aead id, base nonce
constexpr size_t kResponseSaltBytes = 32;
constexpr size_t kChunkTagBytes = 16;
constexpr size_t kMaxChunkPlaintextBytes = 1 << 20;  // one chunk of a request or one event of a response
constexpr size_t kMaxRequestBytes = 10 << 20;        // all sealed chunks of a request together
constexpr uint64_t kMaxChunks = 1 << 20;
constexpr size_t kMaxMessageBytes = kMaxRequestBytes;  // one length-prefixed message of the plaintext stream
constexpr size_t kMaxPurposeBytes = 64;

}  // namespace tie::crypto
