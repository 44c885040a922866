#include "codecs/scale.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/limits.h"

namespace causeway::codecs {

float StoreScale(float wanted, uint8_t* scale) {
  uint16_t bits = ToBfloat16(wanted);
  if (FromBfloat16(bits) < core::kMinScale) bits = 0;
  std::memcpy(scale, &bits, sizeof(bits));
  return FromBfloat16(bits);
}

absl::Status ValidateScale(const uint8_t* scale) {
  const float value = LoadScale(scale);
  const bool zero = value == 0 && !std::signbit(value);
  if (zero || (value >= core::kMinScale && value < core::kMaxMagnitude)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected a scale of 0 or of 2^-100 to below 2^100, got ", value));
}

}  // namespace causeway::codecs
