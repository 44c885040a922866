// e3m0: the 4-bit float of Streaming DiLoCo (arXiv 2501.18512): 1 sign bit, 3 bits of exponent, no mantissa.
//
//   s = bf16(absmax)   t = |x| / s   k = the nearest of 0, 2⁻⁶, 2⁻⁵ … 2⁰, numbered 0 to 7   x̂ = ±2^(k − 7) · s
//
// The largest magnitude is a level itself: with a heavy tail it holds much of the energy (docs/decisions/0006).
#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "codecs/block_format.h"
#include "codecs/scale.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

constexpr int32_t kTop = 7;
constexpr uint32_t kE3m0Sign = 8;
constexpr int kMantissaBits = 23;
constexpr int32_t kExponentBias = 127;

// Half a mantissa more carries into the exponent from 1.5 on. Below 2⁻⁷, half the smallest level, it is zero.
inline uint32_t Nearest(float t) {
  const int32_t exponent =
      static_cast<int32_t>((std::bit_cast<uint32_t>(t) + (1u << (kMantissaBits - 1))) >> kMantissaBits);
  const int32_t smallest = t < 0x1p-7f ? 0 : 1;
  return static_cast<uint32_t>(std::min(std::max(exponent - kExponentBias + kTop, smallest), kTop));
}

CAUSEWAY_MULTIVERSION
void EncodeE3m0(ConstBlockSpan d, float, float, uint8_t* scale, uint8_t* codes) {
  const float stored = StoreScale(LargestMagnitude(d.data()), scale);
  const float inverse = stored == 0 ? 0.0f : 1 / stored;
  WriteNibbles(codes, [&](int64_t i) { return Nearest(std::abs(d[i]) * inverse) | (SignBit(d[i]) ? kE3m0Sign : 0u); });
}

inline float LevelOf(uint32_t k) {
  return k == 0 ? 0.0f : std::bit_cast<float>((k + kExponentBias - kTop) << kMantissaBits);
}

CAUSEWAY_MULTIVERSION
void DecodeE3m0(const uint8_t* scale, const uint8_t* codes, BlockSpan values) {
  const float stored = LoadScale(scale);
  ReadNibbles(codes, [&](int64_t i, uint32_t nibble) {
    values[i] = WithSign(LevelOf(nibble & 7u) * stored, (nibble & kE3m0Sign) != 0);
  });
}

double SumSquaresE3m0(const uint8_t* scale, const uint8_t* codes, int64_t) {
  double squares[8] = {};
  for (uint32_t k = 1; k < 8; ++k) squares[k] = Square(LevelOf(k) * LoadScale(scale));
  return SumOverMagnitudes(codes, squares);
}

absl::Status ValidateE3m0(const uint8_t* scale, const uint8_t* codes, int64_t valid) {
  RETURN_IF_ERROR(ValidateScale(LoadScale(scale)));
  const bool zero = LoadScale(scale) == 0;
  if (!zero && valid == core::kBlockValues) return absl::OkStatus();
  absl::Status status = absl::OkStatus();
  ReadNibbles(codes, [&](int64_t i, uint32_t nibble) {
    if ((i < valid && (!zero || (nibble & 7u) == 0)) || nibble == 0 || !status.ok()) return;
    status = absl::InvalidArgumentError(absl::StrCat("expected ",
                                                     i < valid ? "exponents of 0 with a scale of 0" : "padding of 0",
                                                     ", got nibble ", nibble, " at ", i));
  });
  return status;
}

}  // namespace

const BlockFormat kE3m0Format = {.id = core::CodecId::kE3m0,
                                 .scale_bytes = kScaleBytes,
                                 .code_bytes = kNibbleBytes,
                                 .rotates = false,
                                 .encode = EncodeE3m0,
                                 .decode = DecodeE3m0,
                                 .validate = ValidateE3m0,
                                 .sum_squares = SumSquaresE3m0};

}  // namespace causeway::codecs
