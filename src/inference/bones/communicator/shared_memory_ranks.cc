#include "inference/bones/communicator/shared_memory_ranks.h"

#include <cstring>

namespace tie::bones {

SharedMemoryRanks::SharedMemoryRanks(RankSegment& segment, uint32_t rank)
    : segment_(segment),
      place_(segment.limits().grid.at(rank)),
      n_threads_(segment.limits().threads_per_rank),
      turns_(n_threads_),
      own_(size_t{kGatherRows} * segment.limits().n_embd) {}

float* SharedMemoryRanks::partial(uint32_t thread) {
  return segment_.addend(place_.stage, place_.tensor_rank, turns_[thread].parity);
}

void SharedMemoryRanks::add_up(float* out, size_t first, size_t last, uint32_t parity) {
  std::memcpy(out + first, segment_.addend(place_.stage, 0, parity) + first, (last - first) * sizeof(float));
  for (uint32_t rank = 1; rank < place_.tensor_ranks; ++rank) {
    const float* addend = segment_.addend(place_.stage, rank, parity);
    for (size_t i = first; i < last; ++i) out[i] += addend[i];
  }
}

// Two buffers in turn: a rank that is ahead writes the next addend while others still read this one, and it cannot be
// two sums ahead, because the meeting in between wants everybody.
const float* SharedMemoryRanks::sum(uint32_t thread, uint32_t rows, uint32_t width) {
  const uint32_t parity = turns_[thread].parity;
  turns_[thread].parity ^= 1;
  if (!meet()) return nullptr;
  if (rows <= kGatherRows) {
    add_up(own_.data(), size_t{share(rows, thread)} * width, size_t{share(rows, thread + 1)} * width, parity);
    return own_.data();
  }
  float* total = segment_.total(place_.stage, parity);
  const size_t parts = size_t{place_.tensor_ranks} * n_threads_,
               part = size_t{place_.tensor_rank} * n_threads_ + thread, floats = size_t{rows} * width;
  add_up(total, floats * part / parts, floats * (part + 1) / parts, parity);
  return meet() ? total : nullptr;
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
