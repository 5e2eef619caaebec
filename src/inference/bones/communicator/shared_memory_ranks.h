// The communicator of ranks that share a segment (rank_segment.h). One per rank; the segment outlives it.
// Cost of a sum: with two ranks, or few rows, one meeting, and every rank adds all addends for itself (of two it would
// not read less the other way); else reduce-scatter and all-gather, two meetings and 1/ranks of the additions each.
// Where one rank takes each row, each adds up its own, after one meeting. All add in rank order: the same bits.
#pragma once
#include <vector>

#include "inference/bones/communicator/communicator.h"
#include "inference/bones/communicator/rank_segment.h"

namespace tie::bones {

inline constexpr uint32_t kGatherRows = 16;  // up to here every rank adds for itself

class SharedMemoryRanks final : public Communicator {
 public:
  SharedMemoryRanks(RankSegment& segment, uint32_t rank);

  RankPlace place() const override { return place_; }
  float* partial(uint32_t thread) override;
  bool sum(uint32_t thread, uint32_t rows, uint32_t width, Takers takers) override;
  void take_sum(uint32_t thread, uint32_t row, float* to, bool add) override;
  Activations shared_rows() override { return segment_.shared_rows(place_.stage); }
  bool meet() override {
    return segment_.meet(segment_.header().tensor[place_.stage], place_.tensor_ranks * n_threads_);
  }
  bool send_rows(uint32_t thread, const float* x, uint32_t first_row, uint32_t rows, uint32_t width) override;
  bool wait_rows(uint32_t part) override;
  void copy_rows(uint32_t thread, float* x, uint32_t first_row, uint32_t rows, uint32_t width) override;
  float* logits() override { return segment_.logits(); }
  size_t logits_stride() const override { return segment_.logits_stride(); }
  BestTable best() override { return segment_.best(); }

 private:
  struct alignas(64) Turn {
    uint32_t parity = 0;  // of this thread's next sum
    uint32_t width = 0;   // of its last one, and where its rows are: a total, or all addends
    bool in_total = false;
  };
  uint32_t share(uint32_t total, uint32_t thread) const {
    return static_cast<uint32_t>(uint64_t{total} * thread / n_threads_);
  }

  RankSegment& segment_;
  const RankPlace place_;
  const uint32_t n_threads_;
  std::vector<Turn> turns_;
};

}  // namespace tie::bones
