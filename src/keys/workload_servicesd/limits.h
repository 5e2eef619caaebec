// Limits and times of workload_servicesd.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::wsd {

constexpr size_t kTicketBytes = 32;
constexpr int64_t kTicketTtlMs = 10'000;  // between registration and presentation
constexpr size_t kMaxTickets = 4096;      // registered and not yet presented
constexpr size_t kMaxSeenPerKey =
    500'000;                     // encapsulated keys remembered under one request key; full: the key is revoked
constexpr size_t kMaxKeys = 16;  // living request keys
constexpr size_t kMaxRevokedListed = 64;

constexpr size_t kMaxRequestFrameBytes = 4096;  // the largest is a decapsulation: ticket, key id, 1,120 bytes
constexpr size_t kMaxDecapConnections = 256;
constexpr size_t kMaxAuthorizeConnections = 8;
constexpr size_t kMaxClaimsConnections = 16;
constexpr size_t kMaxOperatorConnections = 4;
constexpr int64_t kGenerateWaitMs = 10'000;  // an operator who asked for a fresh key
constexpr int64_t kFrameDeadlineMs = 5'000;  // from a frame's first byte to its last, and for the answer

constexpr int kConnectTimeoutMs = 5'000;         // of one attempt to reach key_protectiond on a busy machine
constexpr int64_t kKeyServiceTimeoutMs = 5'000;  // each call to key_protectiond
constexpr size_t kMaxKeyPages = 100;             // of key_protectiond's enumeration
constexpr int64_t kHeartbeatMs = 30'000;
constexpr int64_t kFirstBackoffMs = 1'000;   // doubled up to:
constexpr int64_t kLastBackoffMs = 128'000;  // failing at this one too destroys every binding key
constexpr int64_t kKeyLifetimeMs = 24ll * 3600 * 1000;
constexpr int64_t kGraceMs = 5 * 60 * 1000;  // requests that were sealed just before expiry
constexpr int64_t kReapMs = 60'000;
constexpr int64_t kPublishTimeoutMs = 5'000;
constexpr int64_t kRepublishMs = 10'000;     // the same set once more, should a restart have gone unnoticed
constexpr int64_t kLinkPollMs = 200;         // how soon a restarted peer is noticed
constexpr int64_t kLastReconnectMs = 5'000;  // longest pause before a remote key service is tried again
constexpr int64_t kAssetLookMs = 1'000;      // between looks for changed models and prompts

constexpr size_t kMaxManifestBytes = 4 << 20;
constexpr size_t kMaxModels = 64;
constexpr size_t kMaxPrompts = 128;

}  // namespace tie::wsd
