// Starting a further rank of the model: this program once more, in the same container, with four descriptors and
// nothing else, by number. Of CPU ranks (rank_processes.h) and GPU ranks (gpu_ranks.h) alike.
#pragma once
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tie::runtime_host {

// Its weights (or their table), the meeting place, the memory that all ranks share, and a socket that closes when the
// runtime ends.
enum RankFd : int { kWeightsFd = 3, kSegmentFd, kKvFd, kLifelineFd, kAfterRankFds };

// The descriptors stay the caller's; in the rank they are kWeightsFd and those after it. kIo.
Result<pid_t> start_rank_process(const std::vector<std::string>& arguments, const std::array<int, 4>& fds);

// In the rank, before all else: hardened, ends with its runtime, starts nothing with its descriptors.
Result<void> begin_rank_life();

// One argument for each number; kBadRequest.
Result<void> parse_numbers(char** arguments, std::span<uint32_t* const> numbers);

}  // namespace tie::runtime_host
