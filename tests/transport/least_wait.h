// The draw with which BackoffMs is shortest, so that a wait is known.
#pragma once

#include <cstdint>

namespace causeway::transport {

inline constexpr uint64_t kLeast = 0;

}  // namespace causeway::transport
