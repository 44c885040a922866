#include "core/check.h"

#include <atomic>
#include <cstdlib>

namespace causeway::core {
namespace {

std::atomic<CheckListener> listener = nullptr;  // none: a failed CHECK aborts

}  // namespace

void ThrowFailedChecks(CheckListener tells) { listener = tells; }

void CheckFailed(const char* file, int line, const char* condition) {
  const std::string what = std::string(file) + ":" + std::to_string(line) + ": CHECK failed: " + condition;
  if (listener.load() != nullptr) throw CheckFailure(what);
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

bool Guarded(absl::FunctionRef<void()> body) {
  const CheckListener tells = listener;
  if (tells == nullptr) {
    body();
    return true;
  }
  try {
    body();
    return true;
  } catch (const std::exception& failure) {
    tells(failure.what());
    return false;
  }
}

}  // namespace causeway::core
