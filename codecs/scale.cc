#include "codecs/scale.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace causeway::codecs {

float StoreScale(float wanted, uint8_t* scale, float limit) {
  uint16_t bits = ToBfloat16(wanted, limit);
  if (core::FromBfloat16(bits) < core::kMinScale) bits = 0;
  std::memcpy(scale, &bits, sizeof(bits));
  return core::FromBfloat16(bits);
}

absl::Status ValidateScale(float scale, float limit) {
  const bool zero = scale == 0 && !std::signbit(scale);
  if (zero || (scale >= core::kMinScale && scale < limit)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected a scale of 0 or of 2^-100 to below 2^", std::ilogb(limit), ", got ", scale));
}

}  // namespace causeway::codecs
