// How requests ended, counted by class since cloudboardd's start: numbers alone, nothing of a request. An error that
// the node seals inside its answer is completed here, since only the user can tell. Threads: any. Source:
// docs/operators.md.
#pragma once
#include <array>
#include <atomic>

#include "base/result.h"
#include "cloudboard_control.pb.h"

namespace tie::request::cloudboard {

enum class Outcome : uint8_t {
  kCompleted,       // the final event was passed on
  kRefusedBusy,     // not ready, or as many in flight as are let in
  kRefusedKey,      // unknown or expired key, or not authenticated
  kRefusedReplay,   // its encapsulated key had been used
  kRefusedRequest,  // wrong order, size or parameters, or not sent in time
  kFailed,          // the node's fault, before an answer began
  kCancelled,       // the client went away
  kCut,             // the node's fault or the client's standstill, after an answer had begun
};

// How a request with this end counts; `uploaded`: all of it had come; `answering`: the answer's header had been sent.
Outcome outcome_of(Code code, bool uploaded, bool answering);

class OutcomeCounts {
 public:
  void count(Outcome outcome) { counts_[static_cast<size_t>(outcome)].fetch_add(1, std::memory_order_relaxed); }
  void fill(v1::RequestOutcomes& out) const;

 private:
  uint64_t of(Outcome outcome) const { return counts_[static_cast<size_t>(outcome)].load(std::memory_order_relaxed); }
  std::array<std::atomic<uint64_t>, 8> counts_{};
};

}  // namespace tie::request::cloudboard
