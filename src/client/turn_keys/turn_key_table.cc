#include "client/turn_keys/turn_key_table.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "client/turn_keys/history_digest.h"

namespace tie::client {

struct Turn::State {
  TurnKeyTable* table = nullptr;
  crypto::Digest history{};  // of the whole request
  std::shared_ptr<TurnKeyTable::Key> write;
  uint64_t generation = 0;
  bool branched = false;
};

Turn::Turn() = default;
Turn::Turn(std::unique_ptr<State> state) : state_(std::move(state)) {}
Turn::Turn(Turn&& other) noexcept = default;

Turn& Turn::operator=(Turn&& other) noexcept {
  if (this != &other) {
    if (state_) state_->table->fail(*state_);
    state_ = std::move(other.state_);
  }
  return *this;
}

Turn::~Turn() {
  if (state_) state_->table->fail(*state_);
}

void Turn::finish(std::span<const v1::Message> answers, uint32_t tokens) {
  if (!state_) return;
  state_->table->finish(*state_, answers, tokens);
  state_.reset();
}

TurnKeyTable::TurnKeyTable(TurnKeyLimits limits) : limits_(limits) {
  random_bytes(secret_);
}

TurnKeyTable::~TurnKeyTable() {
  secure_zero(secret_.data(), secret_.size());
}

std::shared_ptr<TurnKeyTable::Key> TurnKeyTable::new_key() {
  auto key = std::make_shared<Key>();
  random_bytes(key->bytes);
  return key;
}

TurnKeyTable::History* TurnKeyTable::find(const crypto::Digest& digest) {
  auto found = by_digest_.find(digest);
  return found == by_digest_.end() ? nullptr : &*found->second;
}

void TurnKeyTable::put(const crypto::Digest& digest, std::shared_ptr<Key> key, uint64_t generation) {
  put_at(digest, std::move(key), generation, limits_.now_ms());
}

void TurnKeyTable::put_at(const crypto::Digest& digest, std::shared_ptr<Key> key, uint64_t generation,
                          int64_t used_ms) {
  auto found = by_digest_.find(digest);
  if (found == by_digest_.end()) {
    if (newest_first_.size() >= limits_.max_histories) drop_oldest();
    newest_first_.push_front({.digest = digest});
    found = by_digest_.emplace(digest, newest_first_.begin()).first;
  }
  newest_first_.splice(newest_first_.begin(), newest_first_, found->second);
  History& history = *found->second;
  history.key = std::move(key);
  history.generation = generation;
  history.used_ms = used_ms;
  ++changes_;
}

void TurnKeyTable::drop_oldest() {
  by_digest_.erase(newest_first_.back().digest);
  newest_first_.pop_back();
  ++changes_;
}

void TurnKeyTable::expire() {
  int64_t oldest_ms = limits_.now_ms() - limits_.ttl_ms;
  while (!newest_first_.empty() && newest_first_.back().used_ms <= oldest_ms) drop_oldest();
}

Turn TurnKeyTable::begin(ByteView partition, v1::InferenceRequest& request) {
  if (!request.has_conversation() || request.conversation().messages_size() == 0) return {};
  std::lock_guard lock(mutex_);
  expire();
  std::vector<crypto::Digest> digests = history_digests(secret_, partition, request);
  History* known = nullptr;
  for (size_t i = digests.size(); i-- > 0 && known == nullptr;) known = find(digests[i]);

  auto turn = std::make_unique<Turn::State>();
  turn->table = this;
  turn->history = digests.back();
  if (known == nullptr) {
    turn->write = new_key();
  } else {
    bool stands_here = known->generation != 0 && known->generation == known->key->generation;
    turn->branched = !stands_here;
    turn->write = stands_here ? known->key : new_key();
    request.set_turn_key_read(known->key->bytes.data(), kTurnKeyBytes);
    request.set_turn_key_read_tokens(unsettled_tokens(*known->key));
    put(crypto::Digest(known->digest), std::shared_ptr<Key>(known->key), known->generation);  // used now
  }
  request.set_turn_key_write(turn->write->bytes.data(), kTurnKeyBytes);
  turn->generation = ++turn->write->generation;
  // Until this turn has ended, whoever asks the same again finds what there is, and writes elsewhere.
  if (!turn->branched) put(turn->history, turn->write, 0);
  return Turn(std::move(turn));
}

uint32_t TurnKeyTable::unsettled_tokens(const Key& key) const {
  int64_t since_ms = limits_.now_ms() - key.ended_ms;
  return since_ms >= 0 && since_ms < kTurnSettlesMs ? key.tokens : 0;
}

void TurnKeyTable::finish(const Turn::State& turn, std::span<const v1::Message> answers, uint32_t tokens) {
  std::lock_guard lock(mutex_);
  put(turn.history, turn.write, 0);
  bool newest = turn.write->generation == turn.generation;
  if (newest) {
    turn.write->tokens = tokens;
    turn.write->ended_ms = limits_.now_ms();
  }
  for (const v1::Message& answer : answers)
    put(extend_history(secret_, turn.history, message_digest(answer)), turn.write, newest ? turn.generation : 0);
}

void TurnKeyTable::fail(const Turn::State& turn) {
  std::lock_guard lock(mutex_);
  History* history = find(turn.history);
  bool own = history != nullptr && history->key == turn.write && turn.write->generation == turn.generation;
  if (own) put(turn.history, turn.write, turn.generation);
}

void TurnKeyTable::forget() {
  std::lock_guard lock(mutex_);
  newest_first_.clear();
  by_digest_.clear();
  random_bytes(secret_);
  ++changes_;
}

size_t TurnKeyTable::histories() const {
  std::lock_guard lock(mutex_);
  return newest_first_.size();
}

uint64_t TurnKeyTable::changes() const {
  std::lock_guard lock(mutex_);
  return changes_;
}

// ---- serialized: secret (32), keys k (4), k x {key (32), generation (8)}, histories h (4), newest first: h x {digest
// (32), key number (4), generation (8), last used (8)} ----

namespace {
constexpr size_t kKeyRow = kTurnKeyBytes + 8;
constexpr size_t kHistoryRow = crypto::kSha256Bytes + 4 + 8 + 8;
}  // namespace

SecretBytes TurnKeyTable::serialize() const {
  std::lock_guard lock(mutex_);
  Bytes keys, histories;
  std::unordered_map<const Key*, uint32_t> numbers;
  keys.reserve(newest_first_.size() * kKeyRow);  // growing would leave copies of keys behind
  for (const History& history : newest_first_) {
    auto [number, fresh] = numbers.emplace(history.key.get(), static_cast<uint32_t>(numbers.size()));
    if (fresh) {
      append(keys, ByteView(history.key->bytes));
      append_u64_be(keys, history.key->generation);
    }
    append(histories, ByteView(history.digest));
    append_u32_be(histories, number->second);
    append_u64_be(histories, history.generation);
    append_u64_be(histories, static_cast<uint64_t>(history.used_ms));
  }
  SecretBytes out(secret_.size() + 4 + keys.size() + 4 + histories.size());
  uint8_t* at = out.data();
  auto add = [&](ByteView part) {
    if (!part.empty()) std::memcpy(at, part.data(), part.size());
    at += part.size();
  };
  Bytes key_count, history_count;
  append_u32_be(key_count, static_cast<uint32_t>(numbers.size()));
  append_u32_be(history_count, static_cast<uint32_t>(newest_first_.size()));
  for (ByteView part :
       {ByteView(secret_), ByteView(key_count), ByteView(keys), ByteView(history_count), ByteView(histories)})
    add(part);
  secure_zero(keys);
  return out;
}

Result<void> TurnKeyTable::parse(ByteView serialized) {
  auto corrupt = [] { return tie::fail(Code::kCorrupt, "the turn keys do not hold together"); };
  constexpr size_t kSecret = 32;
  if (serialized.size() < kSecret + 8) return corrupt();
  uint64_t key_count = load_u32_be(serialized.data() + kSecret);
  uint64_t keys_end = kSecret + 4 + key_count * kKeyRow;
  if (keys_end + 4 > serialized.size()) return corrupt();
  uint64_t history_count = load_u32_be(serialized.data() + keys_end);
  if (keys_end + 4 + history_count * kHistoryRow != serialized.size()) return corrupt();
  std::vector<std::shared_ptr<Key>> keys;
  for (const uint8_t* row = serialized.data() + kSecret + 4; keys.size() < key_count; row += kKeyRow) {
    keys.push_back(std::make_shared<Key>());
    std::memcpy(keys.back()->bytes.data(), row, kTurnKeyBytes);
    keys.back()->generation = load_u64_be(row + kTurnKeyBytes);
  }
  std::lock_guard lock(mutex_);
  newest_first_.clear();
  by_digest_.clear();
  std::memcpy(secret_.data(), serialized.data(), kSecret);
  uint64_t now_ms = static_cast<uint64_t>(limits_.now_ms());
  // From the oldest to the newest, as put_at() leaves the last one in front; no use lies in the future.
  for (uint64_t i = std::min<uint64_t>(history_count, limits_.max_histories); i-- > 0;) {
    const uint8_t* row = serialized.data() + keys_end + 4 + i * kHistoryRow;
    uint32_t number = load_u32_be(row + 32);
    if (number >= keys.size()) {
      newest_first_.clear();
      by_digest_.clear();
      return corrupt();
    }
    crypto::Digest digest;
    std::memcpy(digest.data(), row, digest.size());
    put_at(digest, keys[number], load_u64_be(row + 36), static_cast<int64_t>(std::min(load_u64_be(row + 44), now_ms)));
  }
  expire();
  return {};
}

}  // namespace tie::client
