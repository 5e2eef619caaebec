// Every limit of afm-runtime's socket, in one place.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::runtime_host {

inline constexpr int kMaxMessageBytes = 16 << 20;      // gRPC message, both directions
inline constexpr uint32_t kMaxCalls = 512;             // open calls
inline constexpr uint32_t kMaxRequestsPerStream = 64;  // in flight
inline constexpr size_t kMaxUnsentTokens = 1024;       // per request; beyond it the engine pauses the request
inline constexpr size_t kMaxUnsentLogprobs = 256;
inline constexpr size_t kMaxUnsentErrors = 16;  // per stream; beyond it nothing more is read from the stream
inline constexpr size_t kMaxPromptTokens = 1 << 20;
inline constexpr size_t kMaxGrammarBytes = 1 << 20;
inline constexpr size_t kMaxSamplingBytes = 64 << 10;
inline constexpr size_t kMaxIdBytes = 256;  // request id, prompt id
inline constexpr size_t kMaxImages = 64;
inline constexpr int kMaxThreads = 24;  // gRPC's own

}  // namespace tie::runtime_host
