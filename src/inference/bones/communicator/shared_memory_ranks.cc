#include "inference/bones/communicator/shared_memory_ranks.h"

#include <cstring>

namespace tie::bones {
namespace {

// Four floats as one value: the compiler's own vectors, which every CPU has. Alignment is not assumed.
struct Block4 {
  typedef float Value __attribute__((vector_size(16)));
};
struct Block1 {
  using Value = float;
};

template <typename Block>
typename Block::Value load(const float* from, Block) {
  typename Block::Value out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
template <typename Value>
void store(float* to, const Value& value) {
  std::memcpy(to, &value, sizeof value);
}

template <typename Body>
void each_block(size_t n, Body body) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) body(i, Block4{});
  for (; i < n; ++i) body(i, Block1{});
}

// out (+)= floats [first, first + n) of all addends, in rank order.
template <bool kAdd>
void add_up(RankSegment& segment, RankPlace place, uint32_t parity, size_t first, size_t n, float* out) {
  const float* addend[kMaxRanks];
  for (uint32_t rank = 0; rank < place.tensor_ranks; ++rank)
    addend[rank] = segment.addend(place.stage, rank, parity) + first;
  each_block(n, [&](size_t i, auto block) {
    auto sum = load(addend[0] + i, block);
    for (uint32_t rank = 1; rank < place.tensor_ranks; ++rank) sum += load(addend[rank] + i, block);
    if constexpr (kAdd) sum = load(out + i, block) + sum;
    store(out + i, sum);
  });
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
bool SharedMemoryRanks::sum(uint32_t thread, uint32_t rows, uint32_t width) {
  Turn& turn = turns_[thread];
  const uint32_t parity = turn.parity;
  turn = {parity ^ 1, width, place_.tensor_ranks > 2 && rows > kGatherRows};
  if (!meet()) return false;
  if (!turn.in_total) return true;
  float* total = segment_.total(place_.stage, parity);
  const size_t parts = size_t{place_.tensor_ranks} * n_threads_,
               part = size_t{place_.tensor_rank} * n_threads_ + thread, floats = size_t{rows} * width;
  const size_t first = floats * part / parts, last = floats * (part + 1) / parts;
  add_up<false>(segment_, place_, parity, first, last - first, total + first);
  return meet();
}

void SharedMemoryRanks::take_sum(uint32_t thread, uint32_t row, float* to, bool add) {
  const Turn& turn = turns_[thread];
  const size_t first = size_t{row} * turn.width;
  const uint32_t parity = turn.parity ^ 1;
  if (turn.in_total) {
    const float* total = segment_.total(place_.stage, parity) + first;
    if (add)
      each_block(turn.width,
                 [&](size_t i, auto block) { store(to + i, load(to + i, block) + load(total + i, block)); });
    else
      std::memcpy(to, total, turn.width * sizeof(float));
  } else if (add) {
    add_up<true>(segment_, place_, parity, first, turn.width, to);
  } else {
    add_up<false>(segment_, place_, parity, first, turn.width, to);
  }
}

bool SharedMemoryRanks::send_rows(uint32_t thread, const float* x, uint32_t first_row, uint32_t rows, uint32_t width) {
  // Every tensor rank has the same rows; each hands on a part.
  const uint32_t parts = place_.tensor_ranks * n_threads_, part = place_.tensor_rank * n_threads_ + thread;
  const size_t floats = size_t{rows} * width, first = floats * part / parts, last = floats * (part + 1) / parts;
  float* to = segment_.handed_on(place_.stage) + size_t{first_row} * width;
  std::memcpy(to + first, x + first, (last - first) * sizeof(float));
  if (!meet()) return false;
  auto& progress = segment_.header().progress[place_.stage];
  if (part == 0) segment_.advance(progress.parts, progress.sleepers);
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
