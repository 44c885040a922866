// core::FaultPoint of causeway-coordinator-faults: ends the process, as `kill -9` does, when the environment variable
// CAUSEWAY_FAULT="name:count" says so: at the count-th time that this name is reached, on whatever threads.
#include "core/fault_point.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "core/check.h"

namespace causeway::core {
namespace {

struct Fault {
  absl::string_view name;  // empty: none
  int64_t count = 0;
};

Fault ReadFault() {
  const char* given = std::getenv("CAUSEWAY_FAULT");
  if (given == nullptr) return {};
  const absl::string_view text = given;
  const size_t colon = text.find(':');
  CHECK(colon != absl::string_view::npos);
  Fault fault{.name = text.substr(0, colon)};
  CHECK(absl::SimpleAtoi(text.substr(colon + 1), &fault.count) && fault.count > 0);
  return fault;
}

}  // namespace

void FaultPoint(const char* name) {
  static const Fault fault = ReadFault();
  static std::atomic<int64_t> reached = 0;
  if (fault.name != name || ++reached != fault.count) return;
  kill(getpid(), SIGKILL);
  while (true) pause();
}

}  // namespace causeway::core
