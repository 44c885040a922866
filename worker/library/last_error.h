// The result of a thread's last call of the C API: a status of causeway.h and its message.
//
// Thread-safe: each thread has its own.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/site/step_thread.h"

namespace causeway::worker {

struct LastError {
  int code = 0;
  std::string message, expected, got, tensor;  // empty unless the code is 1 to 5
  int64_t index = -1;
};
const LastError& GetLastError();

// Records the status as this thread's last error and returns its code.
int SetLastError(const absl::Status& status);
int SetLastError(const absl::StatusOr<StepThread::Turn>& turn);

}  // namespace causeway::worker
