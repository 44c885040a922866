#include "codecs/encode_input.h"

#include <algorithm>
#include <cmath>

#include "core/limits.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

constexpr float kLargest = 0x1.fffffep99f;  // the last float below core::kMaxMagnitude
static_assert(kLargest < core::kMaxMagnitude);

// Compares all values without a branch, since nearly always all are in range. NaN is not below the limit either.
CAUSEWAY_MULTIVERSION
bool AllBelow(const float* values, size_t count, float limit) {
  int outside = 0;
  for (size_t i = 0; i < count; ++i) outside |= !(std::abs(values[i]) < limit);
  return outside == 0;
}

CAUSEWAY_MULTIVERSION
void Fma(float beta, const float* residual, const float* values, int64_t count, float* d) {
  for (int64_t i = 0; i < count; ++i) d[i] = std::fma(beta, residual[i], values[i]);
}

}  // namespace

void AddFeedback(float beta, const float* residual, const float* values, int64_t count, float* d) {
  if (residual != nullptr) {
    Fma(beta, residual, values, count, d);
  } else if (d != values) {
    std::copy_n(values, count, d);
  }
}

bool BringIntoRange(bool saturate, std::span<float> d) {
  if (AllBelow(d.data(), d.size(), core::kMaxMagnitude)) return true;
  if (!saturate) return false;
  for (float& value : d) value = std::clamp(value, -kLargest, kLargest);
  return true;
}

std::optional<size_t> FirstOutOfRange(std::span<const float> values, float limit) {
  if (AllBelow(values.data(), values.size(), limit)) return std::nullopt;
  size_t i = 0;
  while (std::abs(values[i]) < limit) ++i;
  return i;
}

}  // namespace causeway::codecs
