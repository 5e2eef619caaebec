// Every limit of the client's session in one place. Units end the names.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::client {

constexpr size_t kSealedChunkBytes = 256 * 1024;  // plaintext of one request chunk
constexpr size_t kMaxBodyBytes =
    (10 << 20) - (64 << 10);  // framed and padded request; leaves room for the seals in the node's 10 MiB
constexpr int kStreamWindowBytes = 1 << 20;  // what the node may send ahead of this client
constexpr int kMaxIncomingMessageBytes = 4 << 20;
constexpr int kConnectTimeoutMs = 5'000;  // of one attempt: a distant or busy node takes its time to answer
constexpr int64_t kSilenceMs = 15'000;    // of a stream, before the client asks whether the node still lives
constexpr int64_t kAliveTimeoutMs = 5'000;
constexpr int64_t kAfterFinalWaitMs = 2'000;      // for the node's trailers, once the authenticated end is here
constexpr int64_t kAttestationMarginMs = 30'000;  // a key this close to its expiry is not used any more
constexpr int64_t kDrawnAheadMs = 60'000;         // from the drawing of a request's key to its use; then it is wiped
constexpr int64_t kRekeyWaitMs = 2'000;           // for another key after "not authenticated"
constexpr int64_t kRekeyPollMs = 100;
constexpr size_t kChallengeBytes = 32;
constexpr size_t kMaxCredentialBytes = 1024;
constexpr size_t kMaxModels = 256;

}  // namespace tie::client
