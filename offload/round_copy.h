// A pass that rounds float32 parameters to the bfloat16 copy, past the caches: of parameters that other code has
// changed. An update makes its copy in its own pass (offload/adamw.h). Thread-safe on disjoint arrays.
#pragma once

#include <cstdint>

namespace causeway::offload {

// As core::ToBfloat16, value by value.
void RoundCopy(const float* from, uint16_t* to, int64_t count);

}  // namespace causeway::offload
