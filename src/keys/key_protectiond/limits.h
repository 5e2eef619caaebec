// Limits of key_protectiond.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::kps {

constexpr size_t kMaxKeys = 64;                               // living at once; more: OVERLOADED
constexpr uint64_t kMaxLifetimeMs = 7ull * 24 * 3600 * 1000;  // of one key
constexpr uint64_t kMinLifetimeMs = 1000;
constexpr uint64_t kExpiryGraceMs = 5 * 60 * 1000;  // a key still answers this long after its stated expiry
constexpr size_t kMaxPageSize = 100;
constexpr size_t kMaxUuidBytes = 36;
constexpr int kMaxConcurrentCalls = 32;
constexpr int kMaxRequestBytes = 64 << 10;
constexpr int kMaxHandshakes = 8;  // TLS handshakes at once
constexpr int64_t kHandshakeMs = 5'000;
constexpr int64_t kAcceptPollMs = 100;
constexpr int64_t kReapIntervalMs = 60'000;
constexpr int64_t kStopGraceMs = 2'000;

}  // namespace tie::kps
