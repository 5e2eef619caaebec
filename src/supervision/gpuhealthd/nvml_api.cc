#include "supervision/gpuhealthd/nvml_api.h"

#include <dlfcn.h>

namespace tie::gpuhealth::nvml {
namespace {

template <typename Function>
void find(void* library, const char* symbol, Function& out) {
  out = reinterpret_cast<Function>(::dlsym(library, symbol));
}

}  // namespace

std::string Api::describe(Return code) const {
  const char* text = error_string != nullptr ? error_string(code) : nullptr;
  return text != nullptr ? text : "NVML error " + std::to_string(code);
}

Result<Api> open(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(Code::kNotFound, library + " cannot be opened");
  Api api;
  find(handle, "nvmlInit_v2", api.init);
  find(handle, "nvmlShutdown", api.shutdown);
  find(handle, "nvmlErrorString", api.error_string);
  find(handle, "nvmlDeviceGetCount_v2", api.device_count);
  find(handle, "nvmlDeviceGetHandleByIndex_v2", api.device_by_index);
  find(handle, "nvmlDeviceGetName", api.device_name);
  find(handle, "nvmlDeviceGetTemperature", api.temperature);
  find(handle, "nvmlDeviceGetTemperatureThreshold", api.temperature_threshold);
  find(handle, "nvmlDeviceGetMemoryInfo", api.memory);
  find(handle, "nvmlDeviceGetTotalEccErrors", api.ecc_errors);
  find(handle, "nvmlDeviceGetRetiredPagesPendingStatus", api.retired_pages_pending);
  find(handle, "nvmlDeviceGetRemappedRows", api.remapped_rows);
  find(handle, "nvmlDeviceGetNvLinkState", api.nvlink_state);
  find(handle, "nvmlDeviceGetCurrentClocksEventReasons", api.clock_event_reasons);
  if (api.clock_event_reasons == nullptr)
    find(handle, "nvmlDeviceGetCurrentClocksThrottleReasons", api.clock_event_reasons);
  find(handle, "nvmlEventSetCreate", api.event_set_create);
  find(handle, "nvmlDeviceRegisterEvents", api.register_events);
  find(handle, "nvmlEventSetWait_v2", api.event_set_wait);
  find(handle, "nvmlEventSetFree", api.event_set_free);
  if (api.init == nullptr || api.device_count == nullptr || api.device_by_index == nullptr ||
      api.temperature == nullptr)
    return fail(Code::kUnsupportedFeature, library + " is not NVIDIA's management library");
  return api;
}

}  // namespace tie::gpuhealth::nvml
