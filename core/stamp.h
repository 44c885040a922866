// Numbers for contents: who changes an array gives it a new one, and who keeps a copy sees by it whether that is stale.
#pragma once

#include <atomic>
#include <cstdint>

namespace causeway::core {

// Another one at each call, from any thread; never 0.
inline uint64_t NewStamp() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace causeway::core
