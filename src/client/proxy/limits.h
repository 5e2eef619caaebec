// Every limit of the proxy in one place. Units end the names. They bound what one local program can make this process
// do.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::client {

constexpr size_t kMaxHttpBodyBytes = 10 << 20;
constexpr size_t kMaxHttpHeaderBytes = 64 << 10;
constexpr size_t kMaxHttpTargetBytes = 2048;
constexpr size_t kMaxDrainedBytes = 64 << 20;  // of a refused body, so that the client reads the refusal
constexpr int kMaxHttpConnections = 256;       // beyond it the one that has waited longest for a request is closed
constexpr int kMaxRefusals = 64;               // being told at once that there is no room
constexpr int kMaxRequestsPerConnection = 10'000;
constexpr int64_t kHeaderTimeoutMs = 15'000;  // from the first byte of a request to the end of its headers
constexpr int64_t kBodyTimeoutMs = 60'000;
constexpr int64_t kFirstRequestTimeoutMs = 20'000;  // of a new connection that says nothing
constexpr int64_t kIdleConnectionTimeoutMs = 75'000;
constexpr int64_t kWriteTimeoutMs = 30'000;  // a client that does not read
constexpr int64_t kDrainMs = 10'000;         // for running answers when the proxy is asked to end
constexpr int64_t kLastWordsMs = 1'000;      // then for what they are told about it
constexpr int64_t kDrainPollMs = 10;

constexpr size_t kMaxJsonDepth = 128;
constexpr size_t kMaxMessages = 4096;
constexpr size_t kMaxTools = 512;
constexpr size_t kMaxPrompts = 128;  // of one legacy completions call
constexpr int kMaxSamples = 16;      // n
constexpr int kMaxTopLogprobs = 20;
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 256;
constexpr size_t kMaxLogitBiases = 4096;
constexpr size_t kMaxChoices = 4096;  // guided_choice
constexpr size_t kMaxPromptTokens = 1 << 20;
constexpr size_t kMaxAnswerBytes = 256 << 20;  // collected by one answer that is not streamed

}  // namespace tie::client
