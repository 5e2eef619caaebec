#include "inference/bones/cuda/gpu_numbers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace tie::bones::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNumberLine = "Device Minor:";

// The number in the driver's words about one GPU.
std::optional<uint32_t> number_at(const std::string& driver_folder, std::string address) {
  std::ranges::transform(address, address.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(driver_folder + "/" + address + "/information");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kNumberLine)) continue;
    const size_t digits = line.find_first_of("0123456789");
    uint32_t number = 0;
    if (digits == std::string::npos) return {};
    const auto read = std::from_chars(line.data() + digits, line.data() + line.size(), number);
    return read.ec == std::errc() ? std::optional(number) : std::nullopt;
  }
  return {};
}

Error not_there(uint32_t number) {
  return {Code::kNotFound,
          "finding GPU " + std::to_string(number) + ": it is not on this machine, or not to be opened"};
}

}  // namespace

std::vector<uint32_t> visible_gpus(const std::string& dev) {
  std::vector<uint32_t> out;
  std::error_code ignored;
  for (uint32_t number = 0; number < kMostGpus; ++number)
    if (fs::exists(dev + "/nvidia" + std::to_string(number), ignored)) out.push_back(number);
  return out;
}

Result<uint32_t> usual_gpu_of_rank(uint32_t rank, std::span<const uint32_t> visible) {
  if (visible.empty()) return rank;
  if (rank < visible.size()) return visible[rank];
  return fail(Code::kNotFound, "finding GPU " + std::to_string(rank) +
                                   " of the model: it is divided over more than the " + std::to_string(visible.size()) +
                                   " that are here");
}

Result<int> count_of_gpu(uint32_t number, std::span<const std::string> addresses, std::span<const uint32_t> visible,
                         const std::string& driver_folder) {
  bool told = false;
  for (size_t count = 0; count < addresses.size(); ++count) {
    const auto found = number_at(driver_folder, addresses[count]);
    told = told || found.has_value();
    if (found == number) return static_cast<int>(count);
  }
  if (told) return std::unexpected(not_there(number));
  size_t count = number;
  if (!visible.empty()) {
    const auto place = std::ranges::find(visible, number);
    if (place == visible.end()) return std::unexpected(not_there(number));
    count = static_cast<size_t>(place - visible.begin());
  }
  if (count >= addresses.size()) return std::unexpected(not_there(number));
  return static_cast<int>(count);
}

}  // namespace tie::bones::cuda
