#include "core/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
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

// The bits of a value that float16 can represent.
uint16_t HalfBits(float value) {
  constexpr uint32_t kExponentShift = 10, kDropped = 13, kBiases = 127 - 15;
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (std::isinf(value)) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(magnitude * 0x1p24f);
  return sign | static_cast<uint16_t>(((bits & 0x7fffffff) >> kDropped) - (kBiases << kExponentShift));
}

uint16_t ToHalf(float value) { return HalfBits(RoundToHalf(value)); }

template <float (*kWiden)(uint16_t)>
void LoadBits(const void* array, std::span<float> values) {
  const auto* from = static_cast<const std::byte*>(array);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
    values[i] = kWiden(bits);
  }
}

template <uint16_t (*kNarrow)(float)>
void StoreBits(std::span<const float> values, void* array) {
  auto* to = static_cast<std::byte*>(array);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = kNarrow(values[i]);
    std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
  }
}

// IEEE binary16.
float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) return std::copysign(static_cast<float>(mantissa) * 0x1p-24f, std::bit_cast<float>(sign));
  return std::bit_cast<float>(sign | ((exponent + 127 - 15) << 23) | (mantissa << 13));
}

}  // namespace

int64_t BytesOf(DType dtype) { return dtype == DType::kFloat32 ? sizeof(float) : sizeof(uint16_t); }

void Load(DType dtype, const void* array, std::span<float> values) {
  switch (dtype) {
    case DType::kFloat32: std::memcpy(values.data(), array, values.size_bytes()); break;
    case DType::kBfloat16: LoadBits<FromBfloat16>(array, values); break;
    case DType::kFloat16: LoadBits<HalfToFloat>(array, values); break;
  }
}

void Store(DType dtype, std::span<const float> values, void* array) {
  switch (dtype) {
    case DType::kFloat32: std::memcpy(array, values.data(), values.size_bytes()); break;
    case DType::kBfloat16: StoreBits<ToBfloat16>(values, array); break;
    case DType::kFloat16: StoreBits<ToHalf>(values, array); break;
  }
}

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
