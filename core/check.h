// CHECK aborts on our own bugs: a broken precondition, an impossible state. What a peer, a file or a user got wrong is
// never CHECKed; it gets an absl::Status that says what was expected, what came, and where.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
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
