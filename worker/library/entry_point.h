// The beginning of every function of causeway.h: a body whose broken invariants end in a status, and checks of
// pointers.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/site/step_thread.h"

namespace causeway::worker {

// The result of a thread's last call of the C API: a status of causeway.h and its message.
//
// Thread-safe: each thread has its own.
struct LastError {
  int code = 0;
  std::string message, expected, got, tensor;  // empty unless the code is 1 to 5
  int64_t index = -1;
};
const LastError& GetLastError();

// Records the status as this thread's last error and returns its code.
int SetLastError(const absl::Status& status);
int SetLastError(const absl::StatusOr<StepThread::Turn>& turn);

// Counts a broken invariant, and logs it. Any thread.
void OnBroken(const std::string& what);
int64_t BrokenInvariants();

// Runs the `body` of an entry point; an exception in it becomes a status.
template <typename Body>
int Enter(Body body) {
  try {
    return SetLastError(body());
  } catch (const std::exception& error) {
    OnBroken(error.what());
    return SetLastError(absl::InternalError(absl::StrCat("internal error: ", error.what())));
  }
}

absl::Status Missing(const char* what);

template <typename Struct>
absl::Status CheckSize(const Struct* given, const char* what) {
  if (given == nullptr) return Missing(what);
  if (given->struct_size == sizeof(Struct)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ".struct_size: expected ", sizeof(Struct), ", got ", given->struct_size));
}

}  // namespace causeway::worker
