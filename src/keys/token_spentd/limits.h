// Limits of token_spentd.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::spentd {

constexpr size_t kMaxTokensPerKey =
    1'000'000;  // 40 bytes of tmpfs each; full: the key's tokens are refused from then on
constexpr size_t kMaxRequestFrameBytes = 1024;
constexpr size_t kMaxConnections = 256;  // one for each living helper
constexpr int64_t kFrameDeadlineMs = 5'000;
constexpr int64_t kReapMs = 60'000;

}  // namespace tie::spentd
