// CHECK is for our own bugs: a broken precondition, an impossible state. An error of a peer, a file or a user is never
// CHECKed; it becomes an absl::Status that gives the expected value, the actual value, and the place.
//
// A failed CHECK ends a program. A library must not end its host: there CHECK throws CheckFailure, which every
// outermost function catches: the library's entry points, and the functions in which gRPC or a thread begins (Guarded).
#pragma once

#include <exception>
#include <string>

#include "absl/functional/function_ref.h"

namespace causeway::core {

class CheckFailure : public std::exception {
 public:
  explicit CheckFailure(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  const std::string what_;
};

// Called when a CHECK failed on a thread for which no call waits. Thread-safe.
using CheckListener = void (*)(const std::string& what);

// From this call on, for the whole process or library, a failed CHECK throws, and Guarded calls `listener`.
void ThrowFailedChecks(CheckListener listener);

// Aborts, with a line on stderr, unless failed CHECKs throw.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

// Runs `body` in a place where an exception would end the process; false if a CHECK failed in it.
bool Guarded(absl::FunctionRef<void()> body);

}  // namespace causeway::core

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) ::causeway::core::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

// Leaves the function with the status of an expression that failed.
#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// Declares `declaration` from a StatusOr, or leaves the function with its status.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL_(CAUSEWAY_CONCAT_(status_or_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL_(result, declaration, expression) \
  auto result = (expression);                                   \
  if (!result.ok()) return std::move(result).status();          \
  declaration = std::move(result).value()
#define CAUSEWAY_CONCAT_(a, b) CAUSEWAY_CONCAT_INNER_(a, b)
#define CAUSEWAY_CONCAT_INNER_(a, b) a##b
