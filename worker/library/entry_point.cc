#include "worker/library/entry_point.h"

#include <atomic>
#include <cstring>

#include "core/value_place.h"
#include "worker/library/causeway.h"
#include "worker/library/log_queue.h"

namespace causeway::worker {
namespace {

using Turn = StepThread::Turn;

thread_local LastError last_error;

int CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return CAUSEWAY_OK;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound: return CAUSEWAY_BAD_INPUT;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return CAUSEWAY_REFUSED;
    case absl::StatusCode::kDataLoss: return CAUSEWAY_NON_FINITE;
    case absl::StatusCode::kUnavailable: return CAUSEWAY_UNREACHABLE;
    case absl::StatusCode::kDeadlineExceeded: return CAUSEWAY_AGAIN;
    case absl::StatusCode::kCancelled: return CAUSEWAY_STOP;
    default: return CAUSEWAY_FAILED;
  }
}

// All our messages have the form "…: expected X, got Y; …".
void TellApart(const std::string& message, LastError& error) {
  constexpr char kExpected[] = "expected ", kGot[] = ", got ";
  const size_t expected = message.find(kExpected);
  const size_t got = message.rfind(kGot);
  if (expected == std::string::npos || got == std::string::npos || got < expected) return;
  error.expected = message.substr(expected + strlen(kExpected), got - expected - strlen(kExpected));
  error.got = message.substr(got + strlen(kGot));
  error.got = error.got.substr(0, error.got.find("; "));
}

std::atomic<int64_t> broken = 0;

}  // namespace

const LastError& GetLastError() { return last_error; }

int SetLastError(const absl::Status& status) {
  last_error = {.code = CodeOf(status)};
  if (last_error.code == CAUSEWAY_OK || last_error.code >= CAUSEWAY_AGAIN) return last_error.code;
  last_error.message = std::string(status.message());
  TellApart(last_error.message, last_error);
  if (const auto place = core::PlaceOf(status)) {
    last_error.tensor = place->tensor;
    last_error.index = place->index;
  }
  return last_error.code;
}

int SetLastError(const absl::StatusOr<Turn>& turn) {
  if (!turn.ok()) return SetLastError(turn.status());
  last_error = {};
  switch (*turn) {
    case Turn::kDone: return CAUSEWAY_OK;
    case Turn::kAgain: return CAUSEWAY_AGAIN;
    case Turn::kWork: return CAUSEWAY_WORK;
  }
  return CAUSEWAY_FAILED;
}

void OnBroken(const std::string& what) {
  LogQueue::Get().Add({.level = spdlog::level::err, .text = "internal error: " + what});
  ++broken;
}

int64_t BrokenInvariants() { return broken; }

absl::Status Missing(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": expected a pointer, got NULL"));
}

}  // namespace causeway::worker
