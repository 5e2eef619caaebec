// Which GPU is which. Outside this file a GPU's number is the N of its device node /dev/nvidiaN: an operator reads it
// off nvidia-smi ("Minor Number"), a sandbox is given these nodes. The driver counts otherwise: from 0, over the GPUs
// whose nodes a process can open, in an order of its own; so one GPU may have another count in each process. Pure
// functions over folders; any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kMostGpus = 32;

// The numbers of the nodes that are in `dev`, ascending; none where there is no such node (an emulated driver).
std::vector<uint32_t> visible_gpus(const std::string& dev = "/dev");

// The number of the GPU that serves rank `rank` of a model that names none: the first visible GPU for rank 0, the next
// for rank 1; where none is visible the rank itself. kNotFound: fewer are visible.
Result<uint32_t> usual_gpu_of_rank(uint32_t rank, std::span<const uint32_t> visible);

// What the driver counts the GPU of this number as, given the addresses (of the PCI bus, in any case) of all that it
// counts. `driver_folder` holds ADDRESS/information, in which the driver in the kernel says each one's number; where it
// says none the GPUs are counted in the order of their nodes. kNotFound: the driver does not count that GPU.
Result<int> count_of_gpu(uint32_t number, std::span<const std::string> addresses, std::span<const uint32_t> visible,
                         const std::string& driver_folder = "/proc/driver/nvidia/gpus");

}  // namespace tie::bones::cuda
