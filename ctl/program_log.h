// The log of a program: one line for each event on stderr, with its time in UTC.
//
//   2026-11-21 19:06:52.123Z info rank 0 of 2 …
//   {"time":"2026-11-21T19:06:52.123Z","level":"info","message":"rank 0 of 2 …"}
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "core/mutex.h"
#include "core/progress.h"

namespace causeway::ctl {

enum class LogFormat { kText, kJson };

// From here on spdlog writes to stderr, and never waits for its reader (LogWriter). $CAUSEWAY_LOG has the least level
// that is written.
void SetUpLog(LogFormat format);

// The state of that log; all zero if it was not set up. Thread-safe.
core::LogFigures ProgramLogFigures();

// Writes a program's log to stderr without ever waiting for its reader: a log driver that stands still, a terminal that
// was stopped, a pipe that is not emptied.
//
//   spdlog ─► Add ── there is room ──► stderr
//                └── there is none ──► queue ─► a thread that waits for room
//
// Beyond kMostBytes the oldest lines are dropped.
//
// As long as there is room, a line is written before the call returns, so that a crash loses none. Thread-safe.
class LogWriter {
 public:
  static constexpr size_t kMostBytes = 1 << 20;  // thousands of lines

  // Writes to that descriptor, which stays open. The writer is never destroyed: its thread may be waiting for room.
  explicit LogWriter(int fd);
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  void Add(std::string line);  // `line` ends with its newline
  core::LogFigures figures() const;
  void Flush(int64_t most_ms);  // returns when no line waits, or after that time

 private:
  // How much of the text the descriptor took without waiting.
  size_t Write(const std::string& text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  int fd_;
  bool is_socket_ = false;
  mutable core::Mutex mutex_;
  core::Condition changed_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unsaid_ ABSL_GUARDED_BY(mutex_) = 0;  // dropped lines that the log does not mention yet
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t stuck_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // the time since which it is stuck; 0: it is not
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // the thread is running
};

}  // namespace causeway::ctl
