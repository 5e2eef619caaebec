#include "inference/bones/communicator/shared_memory_ranks.h"

#include <cstring>

#include "inference/bones/ops/each_set.h"

namespace tie::bones {
namespace {

constexpr size_t kLanes = 16;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// out[i] = the sum of addends[0 to n_ranks - 1][i] in rank order, added to out[i] as it was when `add`.
TIE_EACH_SET void add_up(const float* const* addends, uint32_t n_ranks, bool add, float* out, size_t n) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Floats sum = *reinterpret_cast<const Floats*>(addends[0] + i);
    for (uint32_t rank = 1; rank < n_ranks; ++rank) sum += *reinterpret_cast<const Floats*>(addends[rank] + i);
    auto& to = *reinterpret_cast<Floats*>(out + i);
    to = add ? to + sum : sum;
  }
  for (; i < n; ++i) {
    float sum = addends[0][i];
    for (uint32_t rank = 1; rank < n_ranks; ++rank) sum += addends[rank][i];
    out[i] = add ? out[i] + sum : sum;
  }
}

// The same of floats [first, first + n) of what a stage's ranks have written.
void add_ranks(RankSegment& segment, RankPlace place, uint32_t parity, size_t first, bool add, float* out, size_t n) {
  const float* addends[kMaxRanks];
  for (uint32_t rank = 0; rank < place.tensor_ranks; ++rank)
    addends[rank] = segment.addend(place.stage, rank, parity) + first;
  add_up(addends, place.tensor_ranks, add, out, n);
}

}  // namespace

SharedMemoryRanks::SharedMemoryRanks(RankSegment& segment, uint32_t rank)
    : segment_(segment),
      place_(segment.limits().grid.at(rank)),
      n_threads_(segment.limits().threads_per_rank),
      turns_(n_threads_) {}

float* SharedMemoryRanks::partial(uint32_t thread) {
  return segment_.addend(place_.stage, place_.tensor_rank, turns_[thread].parity);
}

// Two buffers in turn: a rank that is ahead writes the next addend while others still read this one, and it cannot be
// two sums ahead, because the meeting in between wants everybody.
bool SharedMemoryRanks::sum(uint32_t thread, uint32_t rows, uint32_t width, Takers takers) {
  Turn& turn = turns_[thread];
  const uint32_t parity = turn.parity;
  turn = {parity ^ 1, width, takers == Takers::kEveryRank && place_.tensor_ranks > 2 && rows > kGatherRows};
  if (!meet()) return false;
  if (!turn.in_total) return true;
  float* total = segment_.total(place_.stage, parity);
  const size_t parts = size_t{place_.tensor_ranks} * n_threads_,
               part = size_t{place_.tensor_rank} * n_threads_ + thread, floats = size_t{rows} * width;
  const size_t first = floats * part / parts, last = floats * (part + 1) / parts;
  add_ranks(segment_, place_, parity, first, false, total + first, last - first);
  return meet();
}

void SharedMemoryRanks::take_sum(uint32_t thread, uint32_t row, float* to, bool add) {
  const Turn& turn = turns_[thread];
  const size_t first = size_t{row} * turn.width;
  const uint32_t parity = turn.parity ^ 1;
  if (!turn.in_total) return add_ranks(segment_, place_, parity, first, add, to, turn.width);
  const float* total = segment_.total(place_.stage, parity) + first;
  add_up(&total, 1, add, to, turn.width);
}

bool SharedMemoryRanks::send_rows(uint32_t thread, const float* x, uint32_t first_row, uint32_t rows, uint32_t width) {
  std::memcpy(segment_.handed_on(place_.stage) + size_t{first_row} * width, x, size_t{rows} * width * sizeof(float));
  if (!meet()) return false;
  auto& progress = segment_.header().progress[place_.stage];
  if (place_.tensor_rank == 0 && thread == 0) segment_.advance(progress.parts, progress.sleepers);
  return true;
}

bool SharedMemoryRanks::wait_rows(uint32_t part) {
  auto& progress = segment_.header().progress[place_.stage - 1];
  return segment_.wait_at_least(progress.parts, progress.sleepers, part + 1);
}

void SharedMemoryRanks::copy_rows(uint32_t thread, float* x, uint32_t first_row, uint32_t rows, uint32_t width) {
  const float* from = segment_.handed_on(place_.stage - 1) + size_t{first_row} * width;
  const size_t first = size_t{share(rows, thread)} * width, last = size_t{share(rows, thread + 1)} * width;
  std::memcpy(x + first, from + first, (last - first) * sizeof(float));
}

}  // namespace tie::bones
