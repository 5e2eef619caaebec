// Every limit of cb_jobhelper in one place.
#pragma once
#include <cstddef>
#include <cstdint>

#include "crypto/wire_labels.h"

namespace tie::request::jobhelper {

constexpr size_t kMaxFrameBytes = (1 << 20) + (64 << 10);  // one sealed chunk or one event with its envelope
constexpr size_t kMaxBufferedBeforeKeyBytes = 512 << 10;   // sealed chunks held until the shared secret has come
constexpr size_t kPauseQueuedBytes = 512 << 10;            // towards one peer: its source is not read beyond it
constexpr size_t kMaxQueuedBytes = 4 << 20;
constexpr size_t kMaxClearParametersBytes = 16 << 10;
constexpr size_t kMaxTokenMessageBytes = 4 << 10;
constexpr size_t kMaxDerivedKeys = 16;
constexpr size_t kTicketBytes = 32;
constexpr size_t kMaxSpendReplyBytes = 64;

constexpr int64_t kStartTimeoutMs = 10'000;  // connections, the app's Ready
constexpr int64_t kDecapTimeoutMs = 10'000;
constexpr int64_t kTokenTimeoutMs = 10'000;
constexpr int64_t kResponseIdleMs =
    150'000;                             // the app gives the runtime 120 s for its first event and 30 s for each other
constexpr int64_t kLastWriteMs = 5'000;  // for what is queued when the request has ended

}  // namespace tie::request::jobhelper
