// The wait before a retry: doubles from kFirstBackoffMs to kLastBackoffMs, with a spread of ±20 % so that the sites
// that a restart cut off do not all return at once. Pure.
#pragma once

#include <cstdint>

namespace causeway::transport {

// `attempt` counts from 0; `random` is any 64 random bits.
int64_t BackoffMs(int attempt, uint64_t random);

}  // namespace causeway::transport
