#include "transport/backoff.h"

#include <algorithm>

#include "core/limits.h"
#include "core/random.h"

namespace causeway::transport {

int64_t BackoffMs(int attempt, uint64_t random) {
  constexpr int kDoublingsToLast = 16;  // more than enough, without overflow
  const int64_t base =
      std::min(core::kFirstBackoffMs << std::clamp(attempt, 0, kDoublingsToLast), core::kLastBackoffMs);
  return static_cast<int64_t>(static_cast<double>(base) * (0.8 + 0.4 * core::UnitInterval(random)));
}

}  // namespace causeway::transport
