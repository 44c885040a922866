// The input of an encoder: d = fma(β, e, x), in range or clamped to it. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace causeway::codecs {

// d = fma(beta, residual, values), or the values themselves where residual is null. `d` may be `values`.
void AddFeedback(float beta, const float* residual, const float* values, int64_t count, float* d);

// Whether all values are finite and below core::kMaxMagnitude. With `saturate`, larger values, which only sums of
// absurd contributions reach, become the largest float below.
bool BringIntoRange(bool saturate, std::span<float> d);

// The index of the first value that is not finite or not below `limit`.
std::optional<size_t> FirstOutOfRange(std::span<const float> values, float limit);

}  // namespace causeway::codecs
