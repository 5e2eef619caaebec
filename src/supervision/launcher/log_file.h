// What the node's processes say, kept in memory (tmpfs) with a bound, and filtered: a line is kept only if one of the
// program's own format strings could have written it, because a process that was taken over could otherwise print a
// user's text for the operator to read. One thread.
#pragma once
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "os/fd.h"

namespace tie::launcher {

constexpr size_t kMaxLogFileBytes = 1 << 20;  // then it becomes NAME.log.1, replacing the one before
constexpr size_t kMaxLineBytes = 400;
constexpr size_t kLastLines = 3;

class LogFile {
 public:
  LogFile(std::string path, std::vector<std::string> formats) : path_(std::move(path)), formats_(std::move(formats)) {}

  // Raw: keep every line. Used until the node has been ready once (no user can have sent anything), and with
  // --raw-logs.
  void set_raw(bool raw) { raw_ = raw; }
  void add(std::string_view line);
  // A line of the launcher's own.
  void note(std::string_view line) { append(line); }
  // The last few kept lines on one line, for the person who reads why a start failed.
  std::string last_lines() const;
  uint64_t dropped_lines() const { return dropped_; }

 private:
  void append(std::string_view line);

  std::string path_;
  std::vector<std::string> formats_;
  os::Fd file_;
  size_t bytes_ = 0;
  bool raw_ = true;
  uint64_t dropped_ = 0;
  std::deque<std::string> last_lines_;
};

// Cuts what arrives on a process's stderr into lines; a line that is too long is cut, the rest of it dropped.
class LineReader {
 public:
  // Reads what is there. False when the other end is closed.
  bool read_from(int fd, LogFile& log);

 private:
  std::string pending_;
  bool skipping_ = false;
};

}  // namespace tie::launcher
