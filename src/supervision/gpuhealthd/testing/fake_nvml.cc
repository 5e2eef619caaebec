// A shared library with NVML's names, for tests: behaves as the file named by TIE_FAKE_NVML_STATE says at each call
// ("key number" a line; absent keys mean a healthy two-GPU machine). Keys: count, init, temperature, slowdown,
// shutdown, ecc, retired, remap_pending, remap_failed, links_down, reasons, lost (1 = GPU 0 is lost), error (a code
// every measurement gives), xid (one event, once per value), hang_ms (before the temperature is told), unsupported (1 =
// optional functions say so).
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace {

long long setting(const char* key, long long otherwise) {
  const char* path = std::getenv("TIE_FAKE_NVML_STATE");
  std::ifstream file(path != nullptr ? path : "");
  std::string name;
  long long value;
  while (file >> name >> value)
    if (name == key) return value;
  return otherwise;
}

// Handles are 1-based indices.
size_t index_of(void* device) {
  return reinterpret_cast<size_t>(device) - 1;
}

int measurement(void* device) {
  if (index_of(device) == 0 && setting("lost", 0) != 0) return 15;
  return static_cast<int>(setting("error", 0));
}

int optional(void* device) {
  if (int code = measurement(device); code != 0) return code;
  return setting("unsupported", 0) != 0 ? 3 : 0;
}

// Faults are GPU 0's.
long long fault(void* device, const char* key, long long otherwise = 0) {
  return index_of(device) == 0 ? setting(key, otherwise) : otherwise;
}

long long last_xid = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return static_cast<int>(setting("init", 0));
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int code) {
  return code == 0 ? "Success" : "a fake error";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(setting("count", 2));
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= static_cast<unsigned>(setting("count", 2))) return 2;
  *device = reinterpret_cast<void*>(static_cast<size_t>(index) + 1);
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned length) {
  std::snprintf(name, length, "Fake GPU");
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* value) {
  if (long long ms = setting("hang_ms", 0); ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  *value = static_cast<unsigned>(fault(device, "temperature", 40));
  return measurement(device);
}
int nvmlDeviceGetTemperatureThreshold(void* device, int which, unsigned* value) {
  *value = static_cast<unsigned>(which == 0 ? setting("shutdown", 95) : setting("slowdown", 90));
  return optional(device);
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  memory[0] = 1000;
  memory[1] = 400;
  memory[2] = 600;
  return optional(device);
}
int nvmlDeviceGetTotalEccErrors(void* device, int, int, unsigned long long* count) {
  *count = static_cast<unsigned long long>(fault(device, "ecc"));
  return optional(device);
}
int nvmlDeviceGetRetiredPagesPendingStatus(void* device, int* pending) {
  *pending = static_cast<int>(fault(device, "retired"));
  return optional(device);
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  *corrected = *uncorrected = 0;
  *pending = static_cast<unsigned>(fault(device, "remap_pending"));
  *failed = static_cast<unsigned>(fault(device, "remap_failed"));
  return optional(device);
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  if (link >= 4) return 2;
  *active = static_cast<long long>(link) >= fault(device, "links_down");
  return optional(device);
}
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
  *reasons = static_cast<unsigned long long>(fault(device, "reasons"));
  return optional(device);
}
int nvmlEventSetCreate(void** set) {
  *set = &last_xid;
  return 0;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) {
  return 0;
}
int nvmlEventSetWait_v2(void*, void* data, unsigned) {
  long long xid = setting("xid", 0);
  if (xid == last_xid) return 10;
  last_xid = xid;
  if (xid == 0) return 10;
  struct Event {
    void* device;
    unsigned long long type, data;
    unsigned gpu, compute;
  } event{reinterpret_cast<void*>(size_t{1}), 8, static_cast<unsigned long long>(xid), 0, 0};
  std::memcpy(data, &event, sizeof event);
  return 0;
}
int nvmlEventSetFree(void*) {
  return 0;
}

}  // extern "C"
