#include "supervision/gpuhealthd/nvml_provider.h"

#include <algorithm>
#include <array>

#include "supervision/gpuhealthd/classify.h"
#include "supervision/gpuhealthd/nvml_api.h"

namespace tie::gpuhealth {
namespace {

constexpr unsigned kMaxDevices = 64;
constexpr size_t kMaxXidsKept = 64;
constexpr int kMaxEventsPerPoll = 64;

struct Gpu {
  nvml::Device device = nullptr;
  std::string name;
  std::array<bool, nvml::kMaxLinks> link_was_up{};
  std::vector<uint64_t> xids;
};

class NvmlProvider final : public DeviceProvider {
 public:
  explicit NvmlProvider(nvml::Api api) : api_(api) {}
  ~NvmlProvider() override { close(); }
  const char* name() const override { return "nvml"; }

  Result<std::vector<DeviceVerdict>> poll() override {
    if (!open_) {
      nvml::Return code = open();
      if (code != nvml::kSuccess) return fail(Code::kIo, "the GPU driver does not answer: " + api_.describe(code));
    }
    take_events();
    std::vector<DeviceVerdict> out;
    bool lost = false;
    for (Gpu& gpu : gpus_) {
      GpuSample sample;
      out.push_back(look(gpu, sample));
      lost = lost || !sample.lost_reason.empty();
    }
    if (lost) close();
    return out;
  }

  nvml::Return open() {
    nvml::Return code = api_.init();
    if (code != nvml::kSuccess) return code;
    open_ = true;
    unsigned count = 0;
    code = api_.device_count(&count);
    if (code != nvml::kSuccess) {
      close();
      return code;
    }
    // A device that was there before and is missing now keeps its row, so that its loss shows.
    expected_ = std::max<size_t>(expected_, std::min(count, kMaxDevices));
    gpus_.resize(expected_);
    if (api_.event_set_create != nullptr && api_.event_set_create(&events_) != nvml::kSuccess) events_ = nullptr;
    for (unsigned i = 0; i < gpus_.size(); ++i) open_device(i, gpus_[i]);
    return nvml::kSuccess;
  }
  size_t device_count() const { return gpus_.size(); }

 private:
  void open_device(unsigned index, Gpu& gpu) {
    if (gpu.name.empty()) gpu.name = "GPU " + std::to_string(index);
    if (api_.device_by_index(index, &gpu.device) != nvml::kSuccess) {
      gpu.device = nullptr;
      return;
    }
    char model[nvml::kNameBytes] = {};
    if (api_.device_name != nullptr && api_.device_name(gpu.device, model, sizeof model - 1) == nvml::kSuccess)
      gpu.name = "GPU " + std::to_string(index) + " " + model;
    if (events_ != nullptr && api_.register_events != nullptr)
      (void)api_.register_events(gpu.device, nvml::kEventXid, events_);
    for (unsigned link = 0; link < nvml::kMaxLinks; ++link)
      gpu.link_was_up[link] = gpu.link_was_up[link] || link_up(gpu, link);
  }

  void close() {
    if (!open_) return;
    if (events_ != nullptr && api_.event_set_free != nullptr) (void)api_.event_set_free(events_);
    events_ = nullptr;
    if (api_.shutdown != nullptr) (void)api_.shutdown();
    for (Gpu& gpu : gpus_) gpu.device = nullptr;
    open_ = false;
  }

  bool link_up(const Gpu& gpu, unsigned link) {
    int active = 0;
    return api_.nvlink_state != nullptr && api_.nvlink_state(gpu.device, link, &active) == nvml::kSuccess &&
           active != 0;
  }

  void take_events() {
    if (events_ == nullptr || api_.event_set_wait == nullptr) return;
    for (int i = 0; i < kMaxEventsPerPoll; ++i) {
      nvml::EventData event{};
      if (api_.event_set_wait(events_, &event, 0) != nvml::kSuccess) return;
      for (Gpu& gpu : gpus_)
        if (gpu.device == event.device && gpu.xids.size() < kMaxXidsKept &&
            std::find(gpu.xids.begin(), gpu.xids.end(), event.data) == gpu.xids.end())
          gpu.xids.push_back(event.data);
    }
  }

  // True when the value may be used. A lost device is noted in the sample; "not supported" only leaves the value out.
  bool usable(nvml::Return code, GpuSample& sample) {
    if (code == nvml::kSuccess) return true;
    if (code == nvml::kGpuIsLost)
      sample.lost_reason = "the device is lost: it has fallen off the bus or the driver cannot reach it";
    if (code == nvml::kResetRequired) sample.lost_reason = "the device needs a reset";
    return false;
  }

  DeviceVerdict look(Gpu& gpu, GpuSample& sample) {
    DeviceVerdict out;
    out.name = gpu.name;
    if (gpu.device == nullptr) {
      sample.lost_reason = "the device is missing";
    } else {
      measure(gpu, sample, out);
    }
    Verdict verdict = classify_gpu(sample);
    out.health = verdict.health;
    out.reason = verdict.reason;
    out.temperature_c = sample.temperature_c.value_or(0);
    return out;
  }

  void measure(const Gpu& gpu, GpuSample& sample, DeviceVerdict& out) {
    unsigned value = 0;
    nvml::Return code = api_.temperature(gpu.device, nvml::kTemperatureGpu, &value);
    if (usable(code, sample)) {
      sample.temperature_c = value;
    } else if (code != nvml::kNotSupported && sample.lost_reason.empty()) {
      sample.lost_reason = "the device does not tell its temperature: " + api_.describe(code);
    }
    measure_thresholds(gpu, sample);
    nvml::Memory memory{};
    if (api_.memory != nullptr && usable(api_.memory(gpu.device, &memory), sample)) {
      out.memory_used_bytes = memory.used;
      out.memory_total_bytes = memory.total;
    }
    measure_memory_cells(gpu, sample);
    unsigned long long reasons = 0;
    if (api_.clock_event_reasons != nullptr && usable(api_.clock_event_reasons(gpu.device, &reasons), sample))
      sample.clock_event_reasons = reasons;
    for (unsigned link = 0; link < nvml::kMaxLinks; ++link)
      if (gpu.link_was_up[link] && !link_up(gpu, link)) ++sample.nvlinks_down;
    sample.xids = gpu.xids;
  }

  void measure_thresholds(const Gpu& gpu, GpuSample& sample) {
    if (api_.temperature_threshold == nullptr) return;
    unsigned value = 0;
    if (usable(api_.temperature_threshold(gpu.device, nvml::kThresholdSlowdown, &value), sample))
      sample.slowdown_c = value;
    if (usable(api_.temperature_threshold(gpu.device, nvml::kThresholdShutdown, &value), sample))
      sample.shutdown_c = value;
  }

  void measure_memory_cells(const Gpu& gpu, GpuSample& sample) {
    unsigned long long errors = 0;
    if (api_.ecc_errors != nullptr &&
        usable(api_.ecc_errors(gpu.device, nvml::kEccUncorrected, nvml::kEccVolatile, &errors), sample))
      sample.uncorrected_ecc_errors = errors;
    int pending = 0;
    if (api_.retired_pages_pending != nullptr && usable(api_.retired_pages_pending(gpu.device, &pending), sample))
      sample.retired_pages_pending = pending != 0;
    unsigned corrected = 0, uncorrected = 0, remap_pending = 0, failed = 0;
    if (api_.remapped_rows == nullptr ||
        !usable(api_.remapped_rows(gpu.device, &corrected, &uncorrected, &remap_pending, &failed), sample))
      return;
    sample.row_remap_pending = remap_pending != 0;
    sample.row_remap_failed = failed != 0;
  }

  nvml::Api api_;
  nvml::EventSet events_ = nullptr;
  std::vector<Gpu> gpus_;
  size_t expected_ = 0;
  bool open_ = false;
};

}  // namespace

Result<std::unique_ptr<DeviceProvider>> make_nvml_provider(const std::string& library) {
  TIE_TRY(nvml::Api api, nvml::open(library));
  auto provider = std::make_unique<NvmlProvider>(api);
  nvml::Return code = provider->open();
  if (code == nvml::kDriverNotLoaded || code == nvml::kLibraryNotFound)
    return fail(Code::kNotFound, "no NVIDIA driver is loaded");
  if (code == nvml::kSuccess && provider->device_count() == 0)
    return fail(Code::kNotFound, "the NVIDIA driver knows no device");
  return std::unique_ptr<DeviceProvider>(std::move(provider));
}

}  // namespace tie::gpuhealth
