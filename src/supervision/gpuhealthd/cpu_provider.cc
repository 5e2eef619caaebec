#include "supervision/gpuhealthd/cpu_provider.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "os/fd.h"
#include "supervision/gpuhealthd/classify.h"

namespace tie::gpuhealth {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kPollsRemembered = 10;

std::string text_of(const std::string& path) {
  auto bytes = os::read_file(path, kMaxFileBytes);
  return bytes ? to_string(*bytes) : std::string();
}

std::optional<uint64_t> number_at(std::string_view text) {
  while (!text.empty() && (text[0] == ' ' || text[0] == '\t')) text.remove_prefix(1);
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The number that follows `key` in a text such as /proc/meminfo.
std::optional<uint64_t> number_after(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  return number_at(text.substr(at + key.size()));
}

double decimal_after(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return 0;
  double value = 0;
  std::string_view rest = text.substr(at + key.size());
  std::from_chars(rest.data(), rest.data() + rest.size(), value);
  return value;
}

// Sums `file` below every entry of `folder` whose name starts with `prefix`.
uint64_t sum_of(const std::string& folder, std::string_view prefix, const std::string& file) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  uint64_t sum = 0;
  if (error) return sum;
  for (const auto& entry : entries) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    sum += number_at(text_of(entry.path().string() + "/" + file)).value_or(0);
  }
  return sum;
}

// The row "MCE:" of /proc/interrupts: one number for each CPU.
uint64_t machine_checks(const std::string& interrupts) {
  std::string_view text = interrupts;
  size_t at = text.find("MCE:");
  if (at == std::string_view::npos) return 0;
  std::string_view row = text.substr(at + 4, text.find('\n', at) - at - 4);
  uint64_t sum = 0;
  while (auto value = number_at(row)) {
    sum += *value;
    row.remove_prefix(row.find_first_of("0123456789"));
    size_t end = row.find_first_not_of("0123456789");
    if (end == std::string_view::npos) break;
    row.remove_prefix(end);
  }
  return sum;
}

class CpuProvider final : public DeviceProvider {
 public:
  CpuProvider(std::string proc, std::string sys) : proc_(std::move(proc)), sys_(std::move(sys)) {
    first_machine_checks_ = machine_checks(text_of(proc_ + "/interrupts"));
    first_memory_errors_ = uncorrected_errors();
    last_throttles_ = throttles();
  }
  const char* name() const override { return "cpu"; }

  Result<std::vector<DeviceVerdict>> poll() override {
    CpuSample sample;
    read_memory(sample);
    sample.memory_full_stall_percent = decimal_after(text_of(proc_ + "/pressure/memory"), "full avg10=");
    sample.machine_checks = since(machine_checks(text_of(proc_ + "/interrupts")), first_machine_checks_);
    sample.uncorrected_memory_errors = since(uncorrected_errors(), first_memory_errors_);
    note_throttling();
    for (bool throttled : throttled_) sample.throttled_polls_of_10 += throttled ? 1 : 0;
    Verdict verdict = classify_cpu(sample);
    DeviceVerdict out;
    out.name = "CPU";
    out.health = verdict.health;
    out.reason = verdict.reason;
    out.temperature_c = hottest();
    out.memory_total_bytes = sample.memory_total_bytes;
    out.memory_used_bytes = since(sample.memory_total_bytes, sample.memory_available_bytes);
    return std::vector{out};
  }

 private:
  static uint64_t since(uint64_t now, uint64_t before) { return now > before ? now - before : 0; }
  uint64_t uncorrected_errors() const { return sum_of(sys_ + "/devices/system/edac/mc", "mc", "ue_count"); }
  uint64_t throttles() const {
    return sum_of(sys_ + "/devices/system/cpu", "cpu", "thermal_throttle/package_throttle_count");
  }

  void note_throttling() {
    uint64_t now = throttles();
    throttled_.push_back(now > last_throttles_);
    last_throttles_ = now;
    if (throttled_.size() > kPollsRemembered) throttled_.pop_front();
  }

  void read_memory(CpuSample& sample) const {
    std::string meminfo = text_of(proc_ + "/meminfo");
    auto total = number_after(meminfo, "MemTotal:");
    auto available = number_after(meminfo, "MemAvailable:");
    if (total && available) {
      sample.memory_total_bytes = *total * 1024;
      sample.memory_available_bytes = *available * 1024;
      return;
    }
    struct sysinfo info{};
    if (::sysinfo(&info) != 0) return;
    sample.memory_total_bytes = static_cast<uint64_t>(info.totalram) * info.mem_unit;
    // Without /proc the page cache cannot be told apart; buffers and free memory are a lower bound that is only used
    // when it is plenty.
    uint64_t free_bytes = static_cast<uint64_t>(info.freeram + info.bufferram) * info.mem_unit;
    sample.memory_available_bytes = std::max<uint64_t>(free_bytes, sample.memory_total_bytes / 20);
  }

  uint32_t hottest() const {
    std::error_code error;
    std::filesystem::directory_iterator entries(sys_ + "/class/thermal", error);
    uint32_t hottest = 0;
    if (error) return hottest;
    for (const auto& entry : entries)
      if (entry.path().filename().string().starts_with("thermal_zone"))
        hottest = std::max(
            hottest, static_cast<uint32_t>(number_at(text_of(entry.path().string() + "/temp")).value_or(0) / 1000));
    return hottest;
  }

  std::string proc_, sys_;
  uint64_t first_machine_checks_ = 0, first_memory_errors_ = 0, last_throttles_ = 0;
  std::deque<bool> throttled_;
};

}  // namespace

std::unique_ptr<DeviceProvider> make_cpu_provider(std::string proc, std::string sys) {
  return std::make_unique<CpuProvider>(std::move(proc), std::move(sys));
}

}  // namespace tie::gpuhealth
