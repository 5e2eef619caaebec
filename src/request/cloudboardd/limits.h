// Every limit of cloudboardd in one place.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::request::cloudboard {

constexpr int kMaxGrpcMessageBytes = 4 << 20;
constexpr size_t kMaxRequestBytes = 10 << 20;      // sealed chunks of one request together
constexpr size_t kMaxChunkBytes = (1 << 20) + 64;  // one sealed chunk: 1 MiB of plaintext, its header and tag
constexpr size_t kPauseReadBytes = 512 << 10;      // waiting for the helper: the client is not read beyond it
constexpr size_t kPauseHelperBytes = 512 << 10;    // waiting for the client: the helper is not read beyond it
constexpr size_t kMaxHelperFrameBytes = (1 << 20) + (64 << 10);
constexpr size_t kMaxHelperQueueBytes = 4 << 20;

constexpr size_t kMaxClearParametersBytes = 16 << 10;
constexpr size_t kKeyIdBytes = 32;
constexpr size_t kMaxEncBytes = 2048;
constexpr size_t kSealedDekBytes = 48;
constexpr size_t kRequestIdDigits = 32;
constexpr size_t kMaxTraceIdBytes = 64;
constexpr size_t kMinChallengeBytes = 16, kMaxChallengeBytes = 64;
constexpr size_t kTicketBytes = 32;

constexpr size_t kMaxConnections = 1000;
constexpr int kMaxStreamsPerConnection = 256;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr size_t kMaxTransportBytes = 512 << 20;  // gRPC's own buffers over all connections
constexpr int kHandshakeTimeoutMs = 10'000;
constexpr int kKeepaliveTimeMs = 15'000, kKeepaliveTimeoutMs = 2'000;
constexpr int kMaxConnectionIdleMs = 10 * 60'000;  // without a call; a client that comes back connects anew
constexpr int kMinClientPingIntervalMs = 5'000;
constexpr size_t kMaxWatchers = 256;  // of attestation or load, each

constexpr int64_t kClientIdleMs = 30'000;  // the next message of an unfinished request, or the client taking our bytes
constexpr int64_t kMaxUploadMs = 10 * 60'000;  // from the call's begin to its final chunk
constexpr int64_t kHelperIdleMs = 180'000;     // the helper's own limit is 150 s
constexpr int64_t kHelperStartMs = 22'000;     // until its first word; its own limits are 10 s each for key and token
constexpr int64_t kWarmWaitMs = 10'000;
constexpr int64_t kAuthorizeTimeoutMs = 5'000;
constexpr int64_t kClaimsTimeoutMs = 5'000;
constexpr int64_t kExitGraceMs = 2'000;  // from the end of a request until its helper is killed
constexpr int64_t kSweepMs = 500;
constexpr int64_t kRegistrationKeepaliveMs = 5'000;
constexpr int64_t kMaxDrainWaitMs = 20 * 60'000;

constexpr int kHelperAttempts = 3;
constexpr int64_t kRefillDelayMs = 500;
constexpr int64_t kAnswerPassesMs = 10;    // from a first answer to the start of its pair's successor
constexpr size_t kMaxStartingHelpers = 8;  // at once; more requests wait for their turn
constexpr int64_t kRestartBackoffMs = 50, kMaxRestartBackoffMs = 2'000;

constexpr size_t kMaxKeys = 64;
constexpr size_t kMaxReplayRecords = 1 << 20;  // one key; a key that reaches it is refused and reported
constexpr int64_t kKeyGraceMs = 5 * 60'000;    // after a published expiry

}  // namespace tie::request::cloudboard
