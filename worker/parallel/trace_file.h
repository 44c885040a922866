// A file in Chrome's trace-event format, one event per line: a list that need not be closed. One owner thread.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace causeway::worker {

class TraceFile {
 public:
  static constexpr int kSteps = 50;  // the number worth tracing: no person would read a trace of all

  // UNAVAILABLE: it cannot be written.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "we");
    if (file == nullptr) {
      return absl::UnavailableError(absl::StrCat("--trace: cannot write ", path, ": ", std::strerror(errno)));
    }
    std::fputs("[\n", file);
    return std::unique_ptr<TraceFile>(new TraceFile(file));
  }
  ~TraceFile() { std::fclose(file_); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void Add(const std::string& event) { std::fputs((event + ",\n").c_str(), file_); }
  void Flush() { std::fflush(file_); }

 private:
  explicit TraceFile(std::FILE* file) : file_(file) {}

  std::FILE* const file_;
};

}  // namespace causeway::worker
