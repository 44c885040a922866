#include "core/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/bfloat16.h"
#include "core/multiversion.h"

namespace causeway::core {
namespace {

constexpr struct {
  DType dtype;
  const char* name;
} kNames[] = {{DType::kFloat32, "float32"}, {DType::kBfloat16, "bfloat16"}, {DType::kFloat16, "float16"}};

inline float RoundToHalf(float value) {
  constexpr float kSmallestNormal = 0x1p-14f, kBeyond = 65520, kQuantum = 0x1p24f;
  const float magnitude = std::fabs(value);
  if (magnitude >= kBeyond) return std::copysign(std::numeric_limits<float>::infinity(), value);
  if (magnitude < kSmallestNormal) return std::nearbyint(value * kQuantum) / kQuantum;
  return RoundBits<13>(value);
}

CAUSEWAY_MULTIVERSION void RoundToBfloat16(const float* values, size_t count, float* rounded) {
  for (size_t i = 0; i < count; ++i) rounded[i] = RoundBits<16>(values[i]);
}

}  // namespace

const char* DTypeName(DType dtype) {
  for (const auto& entry : kNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const auto& entry : kNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

void RoundTo(DType dtype, std::span<const float> values, std::span<float> rounded) {
  switch (dtype) {
    case DType::kFloat32: std::ranges::copy(values, rounded.begin()); break;
    case DType::kBfloat16: RoundToBfloat16(values.data(), values.size(), rounded.data()); break;
    case DType::kFloat16: std::ranges::transform(values, rounded.begin(), RoundToHalf); break;
  }
}

}  // namespace causeway::core
