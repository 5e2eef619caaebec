// Every limit of tie-cloud-app in one place.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::request::app {

constexpr size_t kMaxBodyBytes = 10 << 20;  // the request's plaintext, and one message of it
constexpr size_t kMaxFrameBytes = (1 << 20) + (64 << 10);
constexpr size_t kMaxQueuedBytes = 4 << 20;         // towards the helper
constexpr size_t kPauseQueuedBytes = 256 << 10;     // beyond it the runtime is not read
constexpr size_t kMaxTextPerEventBytes = 64 << 10;  // longer text (an echo) goes out in several events
constexpr int kMaxPromptLogprobsPerEvent = 32;      // with all their alternatives' bytes far below a chunk
constexpr int kMaxRuntimeMessageBytes = 16 << 20;
constexpr uint32_t kMaxReplyHeaderBytes = 16 << 10;
constexpr int kStreamWindowBytes = 1 << 20;  // of the runtime's answer, under way and not yet read

constexpr size_t kMaxModels = 64;
constexpr size_t kMaxModelTomlBytes = 64 << 10;
constexpr size_t kMaxTemplateBytes = 1 << 20;

constexpr int kMaxMessages = 4096;
constexpr int kMaxPartsPerMessage = 1024;
constexpr int kMaxToolCallsPerMessage = 256;
constexpr int kMaxTemplateVariables = 64;
constexpr size_t kMaxIdBytes = 256;
constexpr int kMaxSamples = 16;
constexpr int kMaxTopLogprobs = 20;
constexpr size_t kMaxEchoedBytes = 32 << 20;      // the prompt's text, in all samples of an answer together
constexpr uint64_t kMaxEchoedScores = 4'000'000;  // of its tokens and their alternatives; tens of bytes each
constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 256;
constexpr int kMaxStopTokenIds = 64;
constexpr int kMaxLogitBiases = 1024;
constexpr float kMaxRepetitionPenalty = 100;

constexpr int kMaxTools = 512;
constexpr size_t kMaxToolNameBytes = 256;
constexpr size_t kMaxToolDescriptionBytes = 64 << 10;
constexpr size_t kMaxSchemaBytes = 256 << 10;
constexpr size_t kMaxSchemaDepth = 100;
constexpr size_t kMaxSchemaMembers = 10'000;  // of one object
constexpr size_t kMaxRegexBytes = 64 << 10;
constexpr int kMaxChoices = 4096;
constexpr size_t kMaxGrammarBytes = 1 << 20;
constexpr int kMaxCallsPerAnswer = 32;
constexpr size_t kMaxCallHeadBytes = 1024;  // a model's text before a call's arguments

constexpr uint32_t kMaxKvBlockTokens = 1024;
constexpr uint64_t kMaxSegmentBytes = 32 << 20;  // of plaintext in one entry of the cache store, or one block
constexpr uint32_t kMaxKeptTokens = 240'000;     // of a conversation: their ids and the segments in one manifest
constexpr uint64_t kMaxEphemeralBlocks = 1;      // kept of a request that brought no turn key: nothing can use it
constexpr uint32_t kEphemeralTtlMs = 60'000;     // should this process end before it has deleted them
constexpr int64_t kCacheLookupMs = 300;          // all of an earlier turn's ciphertext, before the runtime is asked
constexpr int64_t kCacheAwaitMs = 2'000;         // for what the turn before is still writing
constexpr int64_t kCacheAwaitPollMs = 20;        // between two looks
constexpr int64_t kTransferSetupMs = 300;        // the runtime's answers about buffers
constexpr int64_t kExportWaitMs = 6'000;         // after the answer is out
constexpr int64_t kCacheWriteMs = 2'000;         // one entry

constexpr int64_t kConnectTimeoutMs = 5'000;
constexpr int64_t kRequestDeadlineMs = 30 * 60'000;  // whatever the client asks for, never longer
constexpr int64_t kInputIdleMs = 60'000;             // the helper and cloudboardd watch the client more closely
constexpr int64_t kFirstEventTimeoutMs = 120'000;    // the runtime may have a queue
constexpr int64_t kEventTimeoutMs = 30'000;          // between two events
constexpr int64_t kSendTimeoutMs = 40'000;           // a client that takes nothing
constexpr int64_t kTickMs = 100;                     // how often the helper is listened to while the runtime is silent
constexpr int64_t kLastWriteMs = 5'000;

}  // namespace tie::request::app
