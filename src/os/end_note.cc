#include "os/end_note.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace tie::os {
namespace {

constexpr size_t kNoteBytes = 2;

constexpr std::array kSteps = {
    EndStepInfo{EndStep::kUnsaid, "unsaid", "it was killed or crashed"},
    EndStepInfo{EndStep::kStopped, "stopped", "it was asked to stop"},
    EndStepInfo{EndStep::kWarmed, "warmed", "it has warmed the prefix cache"},
    EndStepInfo{EndStep::kStarting, "starting", "its sockets or its confinement could not be set up"},
    EndStepInfo{EndStep::kAttachingModel, "attaching-the-model", "it could not attach the model from tie-model-owner"},
    EndStepInfo{EndStep::kLoadingModel, "loading-the-model",
                "the model could not be set up with this machine's memory"},
    EndStepInfo{EndStep::kRestoringPrefix, "restoring-the-prefix-cache",
                "the prefix cache could not be restored from tie-model-owner"},
    EndStepInfo{EndStep::kWarmingPrefix, "warming-the-prefix-cache", "the system prompts could not be computed"},
    EndStepInfo{EndStep::kStartingEngine, "starting-the-engine",
                "the engine could not start (vocabulary, memory for keys and values)"},
    EndStepInfo{EndStep::kServing, "serving", "it failed while it served"},
    EndStepInfo{EndStep::kLosingRank, "losing-a-rank", "a rank process of the model ended"},
    EndStepInfo{EndStep::kDiscardingPrefix, "discarding-the-prefix-cache",
                "a block of the prefix cache failed its digest; it is computed anew"},
};

}  // namespace

const EndStepInfo& end_step_info(EndStep step) {
  auto index = static_cast<size_t>(step);
  return kSteps[index < kSteps.size() ? index : 0];
}

std::string Ended::sentence() const {
  std::string out = end_step_info(step).sentence;
  if (code != Code::kOk) out += std::string(" (") + error_info(code).name + ")";
  return out;
}

Result<EndNote> EndNote::create(const std::string& path) {
  EndNote out;
  out.file_ = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!out.file_) return fail_errno("making the note " + path, errno);
  return out;
}

void EndNote::write(EndStep step, Code code) const {
  if (!file_) return;
  const uint8_t bytes[kNoteBytes] = {static_cast<uint8_t>(step), static_cast<uint8_t>(code)};
  (void)!::pwrite(file_.get(), bytes, sizeof bytes, 0);
}

Ended read_end_note(const std::string& path) {
  // Its writer may have been taken over: neither a link nor a pipe is followed or waited for.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat about{};
  uint8_t bytes[kNoteBytes + 1];
  if (!file || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) ||
      ::pread(file.get(), bytes, sizeof bytes, 0) != ssize_t{kNoteBytes})
    return {};
  // Through the tables, so that only what they hold goes on.
  return {end_step_info(static_cast<EndStep>(bytes[0])).step, error_info(static_cast<Code>(bytes[1])).code};
}

std::string end_note_path(const std::string& socket) {
  return socket + ".end";
}

}  // namespace tie::os
