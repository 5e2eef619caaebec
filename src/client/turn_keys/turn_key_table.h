// Which turn key belongs to which conversation. A turn key is 32 random bytes that this device draws for a conversation
// and sends inside the sealed request; the node keeps the conversation's KV cache under it and forgets the key. Since
// applications resend the whole history, the key is found again by the longest history that the table knows. A request
// that continues a conversation where it stands reads and writes with its key; one that branches off (another answer to
// the same question, an edited message, a second request at the same time) reads with the old key and writes with a new
// one, so that neither branch overwrites the other. Threads: any; the table outlives its turns. Limits: histories (the
// least recently used goes first), time since last use. Secrets: keys live in memory, zeroed when forgotten; no text is
// kept, only keyed digests. Source: spec, "Per-user KV cache".
#pragma once
#include <array>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "base/clock.h"
#include "base/secret_bytes.h"
#include "crypto/sha256.h"

namespace tie::v1 {
class InferenceRequest;
class Message;
}  // namespace tie::v1

namespace tie::client {

constexpr size_t kTurnKeyBytes = 32;
// A node keeps a turn after its answer is out. So long after a turn's end the next one tells it that something may
// still be on its way.
constexpr int64_t kTurnSettlesMs = 6'000;

struct TurnKeyLimits {
  size_t max_histories = 16384;          // two for each turn; about 3 MB when full
  int64_t ttl_ms = 24 * 3600 * 1000;     // since last use; no node keeps an entry longer
  int64_t (*now_ms)() = &wall_clock_ms;  // wall clock: a sealed file outlives the process
};

class TurnKeyTable;

// One request from its start to its end. One thread. Destroyed without finish(): the turn failed, and the same history
// may be asked again with the same keys.
class Turn {
 public:
  Turn();  // of a request that uses no cache
  Turn(Turn&& other) noexcept;
  Turn& operator=(Turn&& other) noexcept;
  ~Turn();
  // The answer is complete: `answers` (one for each sample) are the messages that the application will send back.
  // `tokens`: prompt and answer, as far as the node said; 0: unknown.
  void finish(std::span<const v1::Message> answers, uint32_t tokens = 0);

 private:
  friend class TurnKeyTable;
  struct State;
  explicit Turn(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class TurnKeyTable {
 public:
  explicit TurnKeyTable(TurnKeyLimits limits = {});
  ~TurnKeyTable();
  TurnKeyTable(const TurnKeyTable&) = delete;
  TurnKeyTable& operator=(const TurnKeyTable&) = delete;

  // Sets the request's turn keys, and what the node may have to wait for. `partition`: whoever must not meet another's
  // conversations, e.g. the API key that the application used. A request without messages (text completions) gets none
  // and an empty turn.
  Turn begin(ByteView partition, v1::InferenceRequest& request);
  // Drops every key.
  void forget();

  size_t histories() const;
  uint64_t changes() const;  // grows whenever serialize() would give something else

  // All of it, for a sealed file. parse: kCorrupt.
  SecretBytes serialize() const;
  Result<void> parse(ByteView serialized);

 private:
  friend class Turn;
  struct Key {
    std::array<uint8_t, kTurnKeyBytes> bytes{};
    uint64_t generation = 0;  // of its newest turn
    uint32_t tokens = 0;      // of its newest turn, once that has ended; neither is serialized
    int64_t ended_ms = 0;
    ~Key() { secure_zero(bytes.data(), bytes.size()); }
  };
  struct History {
    crypto::Digest digest;
    std::shared_ptr<Key> key;
    uint64_t generation = 0;  // equal to the key's: the conversation stands here; 0: somewhere on its way
    int64_t used_ms = 0;
  };
  struct DigestHash {
    size_t operator()(const crypto::Digest& digest) const { return load_u64_be(digest.data()); }
  };
  using Histories = std::list<History>;

  static std::shared_ptr<Key> new_key();
  History* find(const crypto::Digest& digest);
  void put(const crypto::Digest& digest, std::shared_ptr<Key> key, uint64_t generation);
  void put_at(const crypto::Digest& digest, std::shared_ptr<Key> key, uint64_t generation, int64_t used_ms);
  void drop_oldest();
  void expire();
  uint32_t unsettled_tokens(const Key& key) const;
  void finish(const Turn::State& turn, std::span<const v1::Message> answers, uint32_t tokens);
  void fail(const Turn::State& turn);

  const TurnKeyLimits limits_;
  mutable std::mutex mutex_;  // everything below
  std::array<uint8_t, 32> secret_{};
  Histories newest_first_;
  std::unordered_map<crypto::Digest, Histories::iterator, DigestHash> by_digest_;
  uint64_t changes_ = 0;
};

}  // namespace tie::client
