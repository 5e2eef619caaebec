// A hostile tie-cloud-app: any sequence of messages on one connection, with and without memory. The store stays within
// its limits and its books stay right. Input: pieces of a length byte and so many bytes of a StoreRequest; a length
// above 127 sends sealed memory along.
#include "cache/store/store_session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  using namespace tie::cache;
  Store store({.capacity_bytes = 64 << 10, .max_entries = 16, .max_descriptors = 4, .max_entry_bytes = 32 << 10});
  StoreSession session(store);
  int64_t now_ms = 0;
  for (size_t at = 0; at < size;) {
    size_t length = std::min<size_t>(data[at] & 127, size - at - 1);
    bool with_memory = data[at] > 127;
    v1::StoreRequest request;
    bool parsed = request.ParseFromArray(data + at + 1, static_cast<int>(length));
    at += 1 + length;
    if (!parsed) continue;
    std::vector<os::Fd> fds;
    if (with_memory) {
      auto memory = os::create_memfd("entry", request.put().bytes() % (64 << 10));
      if (memory && os::add_seals(memory->get(), os::kSealAll)) fds.push_back(std::move(*memory));
    }
    (void)session.act(request, fds, now_ms);
    now_ms += 100;
    StoreCounters counters = store.counters();
    tie_check(counters.used_bytes <= store.limits().capacity_bytes && counters.entries <= store.limits().max_entries,
              "the store keeps its limits");
  }
  store.expire(now_ms + kMaxTtlMs + 1);
  tie_check(store.counters().entries == 0 && store.counters().used_bytes == 0,
            "everything expires and is accounted for");
  return 0;
}
