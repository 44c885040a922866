// The library's log: lines wait here until the program takes them, and go nowhere else.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <deque>
#include <optional>
#include <string>

#include "core/mutex.h"

namespace causeway::worker {

struct LogLine {
  spdlog::level::level_enum level = spdlog::level::info;
  int64_t unix_ms = 0;
  int64_t dropped = 0;  // lines lost before this one
  std::string text;
};

// Thread-safe.
class LogQueue {
 public:
  static constexpr size_t kMaxLines = 1000;  // enough for a program that polls once a minute

  // The library's queue; from the first call on, spdlog's default logger writes to it.
  static LogQueue& Get();

  void Add(LogLine line);
  std::optional<LogLine> Take();  // the oldest

 private:
  core::Mutex mutex_;
  std::deque<LogLine> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::worker
