// The log of a program: one line for each event on stderr, with its time in UTC.
//
//   2026-11-21 19:06:52.123Z info rank 0 of 2 …
//   {"time":"2026-11-21T19:06:52.123Z","level":"info","message":"rank 0 of 2 …"}
#pragma once

#include "ctl/log_writer.h"

namespace causeway::ctl {

enum class LogFormat { kText, kJson };

// From here on spdlog writes there, and never waits for its reader (log_writer.h). $CAUSEWAY_LOG has the least level
// that is written.
void SetUpLog(LogFormat format);

// How that log is doing; nothing is wrong with one that was not set up. Thread-safe.
core::LogFigures ProgramLogFigures();

}  // namespace causeway::ctl
