// CHECK is for our own bugs: a broken precondition, an impossible state. What a peer, a file or a user got wrong is
// never CHECKed; it gets an absl::Status that says what was expected, what came, and where.
//
// A program ends at a failed CHECK. A library must not end its host: there CHECK throws CheckFailure, which each
// function that others call catches, its own entry points and those that gRPC or a thread begins with (Guarded).
#pragma once

#include <cstdio>
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

// Tells of a CHECK that failed on a thread that nobody's call waits on. Thread-safe.
using CheckListener = void (*)(const std::string& what);

// From here on, for the whole process or library: a failed CHECK throws, and Guarded tells `listener` of it.
void ThrowFailedChecks(CheckListener listener);

// Aborts, with a line on stderr, unless failed CHECKs throw.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

// Runs `body`, where an exception would end the process: false if a CHECK failed in it.
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
