#include "worker/library/entry_point.h"

#include <atomic>

#include "worker/library/log_queue.h"

namespace causeway::worker {
namespace {

std::atomic<int64_t> broken = 0;

}  // namespace

void OnBroken(const std::string& what) {
  LogQueue::Get().Add({.level = spdlog::level::err, .text = "internal error: " + what});
  ++broken;
}

int64_t BrokenInvariants() { return broken; }

absl::Status Missing(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": expected a pointer, got NULL"));
}

}  // namespace causeway::worker
