#include "supervision/launcher/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>

#include "base/clock.h"
#include "os/log.h"

namespace tie::launcher {

void LogFile::add(std::string_view line) {
  bool known = std::any_of(formats_.begin(), formats_.end(),
                           [&](const std::string& f) { return os::line_matches_format(line, f); });
  if (!known && !raw_) {
    // The count is told, at growing intervals, so that silence is not mistaken for health.
    if (std::has_single_bit(++dropped_))
      append(fmt::format("launcher: {} lines were not kept: no format of the program wrote them", dropped_));
    return;
  }
  // A program that fails at each start says the same each time.
  std::erase(last_lines_, line);
  last_lines_.emplace_back(line);
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  append(line);
}

std::string LogFile::last_lines() const {
  return fmt::format("{}", fmt::join(last_lines_, " | "));
}

void LogFile::append(std::string_view line) {
  if (!file_ || bytes_ > kMaxLogFileBytes) {
    if (file_) std::rename(path_.c_str(), (path_ + ".1").c_str());
    file_ = os::Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    bytes_ = 0;
  }
  int64_t now = wall_clock_ms();
  std::string text = fmt::format("{}.{:03} {}\n", now / 1000, now % 1000, line);
  if (file_ && ::write(file_.get(), text.data(), text.size()) > 0) bytes_ += text.size();
}

bool LineReader::read_from(int fd, LogFile& log) {
  char buffer[4096];
  ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) {
    if (!pending_.empty()) log.add(pending_);
    pending_.clear();
    return false;
  }
  for (char c : std::string_view(buffer, static_cast<size_t>(n))) {
    if (c == '\n') {
      if (!pending_.empty()) log.add(pending_);
      pending_.clear();
      skipping_ = false;
    } else if (!skipping_) {
      pending_.push_back(c >= 32 && c < 127 ? c : '?');
      if (pending_.size() >= kMaxLineBytes) skipping_ = true;
    }
  }
  return true;
}

}  // namespace tie::launcher
