// The shared memory in which the ranks of one model meet: a memfd of fixed (sealed) size with barriers, the step that
// the leader asks for, and exchange buffers. Created by the leader's host, mapped by every rank. All ranks are one
// trust domain (same program, same model); counts are still checked against the limits before they are used.
// Waiting: spin a little, then sleep on a futex in slices of 50 ms, looking for dead peers after each.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "inference/bones/kernels/tile.h"
#include "inference/bones/model.h"
#include "inference/bones/ops/best_ids.h"
#include "inference/bones/rank_place.h"
#include "os/fd.h"
#include "os/memfd.h"

namespace tie::bones {

// Sizes that all ranks agree on.
struct RankLimits {
  RankPlace grid;  // tensor_ranks and stages
  uint32_t threads_per_rank = 1;
  uint32_t n_embd = 0, n_vocab = 0;
  uint32_t max_batch_rows = 0, max_logit_rows = 0, max_sequences = 0;
  uint32_t max_table_entries = 1u << 20;  // block numbers of all sequences of one step
};

// One counter, so that a meeting of two moves one cache line twice: once for each arrival, and back to who waited.
struct alignas(64) BarrierState {
  std::atomic<uint64_t> arrived;  // in all meetings so far; it stands still once the highest bit says failed
  alignas(64) std::atomic<uint32_t> sleepers;
};

struct StoredSpan {
  uint32_t first_row, n_rows, first_position, first_entry, n_entries;
};

struct StoredBest {
  uint32_t k, below, masked;
};

// What the leader asks for; written before `epoch` grows, read after.
struct StepRecord {
  uint32_t n_tokens, n_sequences, n_logit_rows, n_embeddings;
  uint32_t n_best;  // 0, or as many as rows of logits
  KvType kv_type;
  uint32_t kv_block_tokens, kv_blocks;
  uint64_t kv_offset;  // of block 0 in the shared KV memory
};

struct SegmentHeader {
  uint64_t magic;
  RankLimits limits;
  alignas(64) std::atomic<uint32_t> epoch;  // one more for each step; followers sleep on it
  std::atomic<uint32_t> followers_asleep, stop, failed;
  BarrierState world;              // one thread of each rank
  BarrierState tensor[kMaxRanks];  // every thread of the ranks of a stage
  struct alignas(64) {
    std::atomic<uint32_t> parts;  // parts of the batch that this stage has handed on in this step
    std::atomic<uint32_t> sleepers;
  } progress[kMaxRanks];
  alignas(64) StepRecord step;
};

// Descriptors that become readable when a peer process ends: pidfds, or the other end of a socket pair.
class PeerWatch {
 public:
  PeerWatch() = default;
  explicit PeerWatch(std::vector<os::Fd> peers) : peers_(std::move(peers)) {}
  bool lost() const;

 private:
  std::vector<os::Fd> peers_;
};

class RankSegment {
 public:
  // kBadRequest for limits that make no sense, kIo when the memory is refused.
  static Result<RankSegment> create(const RankLimits& limits);
  // kCorrupt unless the memfd has its size sealed and holds a segment of that size.
  static Result<RankSegment> open(os::Fd memory);

  int fd() const { return fd_.get(); }
  const RankLimits& limits() const { return limits_; }
  SegmentHeader& header() { return *reinterpret_cast<SegmentHeader*>(mapping_.writable().data()); }
  void watch(PeerWatch peers) { peers_ = std::move(peers); }

  // True once all `parties` have arrived; false when the team has failed before they did. All parties of one meeting
  // get the same answer.
  bool meet(BarrierState& barrier, uint32_t parties);
  // Waits until `word` satisfies at_least; false when the team has failed.
  bool wait_at_least(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers, uint32_t at_least);
  void advance(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers);
  // The leader: lets the followers begin the step that lies here; meets them when it is done (kRuntimeLost: the team
  // has failed); ends their lives.
  void begin_step();
  Result<void> end_step();
  void stop();
  // A follower's life: does every step by `run` and meets the others after it. Ok: told to stop. An error of `run` is
  // the team's end, and what this returns; kRuntimeLost: another's was.
  Result<void> follow(const std::function<Result<void>()>& run);
  // Fails every wait of every rank, now and later.
  void fail();
  // Looks at the peers as well, so that an idle leader notices a death.
  bool failed();

  // Arrays behind the header.
  int32_t* tokens() { return at<int32_t>(tokens_); }
  StoredSpan* spans() { return at<StoredSpan>(spans_); }
  uint32_t* table() { return at<uint32_t>(table_); }
  uint32_t* logit_rows() { return at<uint32_t>(logit_rows_); }
  uint32_t* embedding_rows() { return at<uint32_t>(embedding_rows_); }
  float* embeddings() { return at<float>(embeddings_); }
  float* addend(uint32_t stage, uint32_t rank, uint32_t parity) {
    return at<float>(addends_) + ((size_t{stage} * limits_.grid.tensor_ranks + rank) * 2 + parity) * row_floats();
  }
  float* total(uint32_t stage, uint32_t parity) {
    return at<float>(totals_) + (size_t{stage} * 2 + parity) * row_floats();
  }
  // Buffers for max_batch_rows quantised rows, one set for each stage.
  Activations shared_rows(uint32_t stage);
  float* handed_on(uint32_t stage) { return at<float>(handed_) + stage * row_floats(); }
  float* logits() { return at<float>(logits_); }
  StoredBest* wanted() { return at<StoredBest>(wanted_); }
  uint32_t mask_words() const { return (limits_.n_vocab + 31) / 32; }
  uint32_t* mask(uint32_t logit_row) { return at<uint32_t>(masks_) + size_t{logit_row} * mask_words(); }
  BestTable best() { return {at<Candidate>(best_), at<uint32_t>(best_counts_), best_lists(), limits_.max_logit_rows}; }
  size_t logits_stride() const { return (limits_.n_vocab + 15) / 16 * 16 + 16; }

 private:
  RankSegment() = default;
  size_t lay_out(const RankLimits& limits);
  uint32_t best_lists() const { return limits_.grid.tensor_ranks * limits_.threads_per_rank; }
  // False: told to stop, or the team has failed.
  bool wait_for_step(uint32_t seen);
  size_t row_floats() const { return size_t{limits_.max_batch_rows} * limits_.n_embd; }
  template <typename T>
  T* at(size_t offset) {
    return reinterpret_cast<T*>(mapping_.writable().data() + offset);
  }
  // One slice of sleep while `word` is `value`; looks for dead peers when it was in vain.
  template <typename Word>
  void sleep(std::atomic<Word>& word, Word value, std::atomic<uint32_t>& sleepers);

  os::Fd fd_;
  os::Mapping mapping_;
  RankLimits limits_;  // a private copy
  PeerWatch peers_;
  size_t tokens_ = 0, spans_ = 0, table_ = 0, logit_rows_ = 0, embedding_rows_ = 0, embeddings_ = 0, addends_ = 0,
         totals_ = 0, shared_ = 0, handed_ = 0, logits_ = 0, wanted_ = 0, masks_ = 0, best_ = 0, best_counts_ = 0;
};

}  // namespace tie::bones
