// Stamps for array contents: a writer that changes an array gives it a new stamp, which tells the holder of a copy
// whether the copy is stale.
#pragma once

#include <atomic>
#include <cstdint>

namespace causeway::core {

// A different number at each call, from any thread; never 0.
inline uint64_t NewStamp() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace causeway::core
