// Why a process ended, for whoever supervises it: two numbers of fixed lists in a small file that it makes at its start
// and fills in when it ends. Nothing else can stand there, so that a process which held users' text cannot leave any.
// Written by afm-runtime beside its socket, read by tie-status-probe in the same container. Threads: one.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"
#include "os/fd.h"

namespace tie::os {

// What the process was at when it ended. Numbers are in the file: never renumber.
enum class EndStep : uint8_t {
  kUnsaid = 0,  // it had no time to say: killed, or it crashed
  kStopped = 1,
  kWarmed = 2,
  kStarting = 3,
  kAttachingModel = 4,
  kLoadingModel = 5,
  kRestoringPrefix = 6,
  kWarmingPrefix = 7,
  kStartingEngine = 8,
  kServing = 9,
  kLosingRank = 10,
  kDiscardingPrefix = 11,
};

struct EndStepInfo {
  EndStep step;
  const char* word;      // for the log
  const char* sentence;  // for `tie node status`, after "the runtime has exited: "
};
// The row of the one table; unknown steps give the row of kUnsaid.
const EndStepInfo& end_step_info(EndStep step);

struct Ended {
  EndStep step = EndStep::kUnsaid;
  Code code = Code::kOk;
  // "it could not attach the model from tie-model-owner (NOT_READY)"
  std::string sentence() const;
};

class EndNote {
 public:
  EndNote() = default;  // writes nowhere
  // Makes the file, or empties the one of an earlier process. Call before files can no longer be opened.
  static Result<EndNote> create(const std::string& path);
  // The last one counts.
  void write(EndStep step, Code code) const;

 private:
  Fd file_;
};

// A missing, empty or damaged note says nothing: kUnsaid.
Ended read_end_note(const std::string& path);

// Where the process that serves `socket` leaves its note.
std::string end_note_path(const std::string& socket);

}  // namespace tie::os
