// This test program's definition of core::FaultPoint: calls a hook of the test that runs.
#pragma once

#include <functional>
#include <string>

namespace causeway {

// Called at every fault point while it lives, on the thread that reaches it. One at a time.
class FaultHook {
 public:
  explicit FaultHook(std::function<void(const std::string&)> hook);
  ~FaultHook();
};

}  // namespace causeway
