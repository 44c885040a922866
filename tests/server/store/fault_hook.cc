#include "tests/server/store/fault_hook.h"

#include <mutex>

#include "core/fault_point.h"

namespace causeway {
namespace {

std::mutex mutex;
std::function<void(const std::string&)> current;

}  // namespace

FaultHook::FaultHook(std::function<void(const std::string&)> hook) {
  const std::lock_guard lock(mutex);
  current = std::move(hook);
}

FaultHook::~FaultHook() {
  const std::lock_guard lock(mutex);
  current = nullptr;
}

namespace core {

void FaultPoint(const char* name) {
  const std::lock_guard lock(mutex);
  if (current) current(name);
}

}  // namespace core
}  // namespace causeway
