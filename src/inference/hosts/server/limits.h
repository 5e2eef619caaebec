// Every limit of afm-runtime's socket, in one place.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::runtime_host {

inline constexpr int kMaxMessageBytes = 16 << 20;      // gRPC message, both directions
inline constexpr int kStreamWindowBytes = 256 << 10;   // of a request, under way and not yet read
inline constexpr uint32_t kMaxCalls = 512;             // open calls
inline constexpr uint32_t kMaxRequestsPerStream = 64;  // in flight
inline constexpr size_t kMaxUnsentTokens = 1024;       // per request; beyond it the engine pauses the request
inline constexpr size_t kMaxUnsentLogprobs = 256;
// Between two responses of one request whose tokens come faster: forty a second read as one flow. With more than
// kUnhurriedCalls at once each has fewer: what a response costs outside the engine is then taken from other tokens.
inline constexpr int64_t kResponseIntervalUs = 25'000;
inline constexpr uint32_t kUnhurriedCalls = 4;
inline constexpr int64_t kLongestResponseIntervalUs = 100'000;
inline constexpr size_t kMostGatheredTokens = 64;
inline constexpr size_t kMaxUnsentErrors = 16;  // per stream; beyond it nothing more is read from the stream
inline constexpr size_t kMaxPromptTokens = 1 << 20;
inline constexpr size_t kMaxGrammarBytes = 1 << 20;
inline constexpr size_t kMaxSamplingBytes = 64 << 10;
inline constexpr size_t kMaxIdBytes = 256;  // request id, prompt id
inline constexpr size_t kKvHandleBytes = 16;
inline constexpr size_t kMaxKvxferConnections = 512;  // one for each app, the waiting ones included
inline constexpr int64_t kMaxExportHeldMs = 30'000;   // a filled buffer that its app does not read and let go of
inline constexpr int64_t kExportDrainMs = 3'000;      // how long a drain waits for apps that still read theirs
inline constexpr size_t kMaxImages = 64;
inline constexpr int kMaxThreads = 24;  // gRPC's own

}  // namespace tie::runtime_host
