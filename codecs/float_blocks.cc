// float32 and bfloat16: the values themselves, little-endian, without scales.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codecs/block_format.h"
#include "codecs/scale.h"
#include "core/bfloat16.h"
#include "core/check.h"
#include "core/limits.h"
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

void EncodeFloat32(ConstBlockSpan d, float, float, uint8_t*, uint8_t* codes) {
  std::memcpy(codes, d.data(), d.size_bytes());
}

void DecodeFloat32(const uint8_t*, const uint8_t* codes, BlockSpan values) {
  std::memcpy(values.data(), codes, values.size_bytes());
}

CAUSEWAY_MULTIVERSION
void RoundToBfloat16(const float* values, uint8_t* codes) {
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const uint16_t bits = ToBfloat16(values[i]);
    std::memcpy(codes + i * sizeof(bits), &bits, sizeof(bits));
  }
}

void EncodeBfloat16(ConstBlockSpan d, float, float, uint8_t*, uint8_t* codes) { RoundToBfloat16(d.data(), codes); }

void DecodeBfloat16(const uint8_t*, const uint8_t* codes, BlockSpan values) {
  uint16_t bits[core::kBlockValues];
  std::memcpy(bits, codes, sizeof(bits));
  for (int64_t i = 0; i < core::kBlockValues; ++i) values[i] = core::FromBfloat16(bits[i]);
}

// Compares all values without a branch, since nearly always all are good. NaN is not below the limit either, and
// padding is +0, which is bits of all zero.
CAUSEWAY_MULTIVERSION
bool AllGood(const float* values, int64_t valid) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t limit = i < valid ? std::bit_cast<uint32_t>(core::kMaxMagnitude) : 1u;
    bad |= static_cast<uint32_t>((bits & 0x7fffffffu) >= limit) | static_cast<uint32_t>(i >= valid && bits != 0);
  }
  return bad == 0;
}

absl::Status ValidateValues(ConstBlockSpan values, int64_t valid) {
  if (AllGood(values.data(), valid)) return absl::OkStatus();
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    if (i < valid && !(std::abs(values[i]) < core::kMaxMagnitude)) {
      return absl::InvalidArgumentError(absl::StrCat("expected finite values below 2^100, got ", values[i], " at ", i));
    }
    if (i >= valid && std::bit_cast<uint32_t>(values[i]) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("expected padding of +0, got ", values[i], " at ", i));
    }
  }
  return absl::OkStatus();
}

template <auto kDecode>
absl::Status Validate(const uint8_t* scale, const uint8_t* codes, int64_t valid) {
  std::array<float, core::kBlockValues> values;
  kDecode(scale, codes, values);
  return ValidateValues(values, valid);
}

CAUSEWAY_MULTIVERSION
double SquaresOfPart(const float* values) {
  return SumOverBlock<double>([values](int i, double sum) { return sum + Square(values[i]); });
}

template <auto kDecode>
double SumSquares(const uint8_t* scale, const uint8_t* codes, int64_t) {
  std::array<float, core::kBlockValues> values;
  kDecode(scale, codes, values);
  return SquaresOfPart(values.data());
}

}  // namespace

// e3m0: the 4-bit float of Streaming DiLoCo (arXiv 2501.18512): 1 sign bit, 3 bits of exponent, no mantissa.
//
//   s = bf16(absmax)   t = |x| / s   k = the nearest of 0, 2⁻⁶, 2⁻⁵ … 2⁰, numbered 0 to 7   x̂ = ±2^(k − 7) · s
//
// The largest magnitude is a level itself: with a heavy tail it holds much of the energy (docs/decisions/0006).

const BlockFormat kE3m0Format = {.id = core::CodecId::kE3m0,
                                 .scale_bytes = kScaleBytes,
                                 .code_bytes = kNibbleBytes,
                                 .rotates = false,
                                 .encode = EncodeE3m0,
                                 .decode = DecodeE3m0,
                                 .validate = ValidateE3m0,
                                 .sum_squares = SumSquaresE3m0};

const BlockFormat kFloat32Format = {.id = core::CodecId::kFloat32,
                                    .scale_bytes = 0,
                                    .code_bytes = core::kBlockValues * sizeof(float),
                                    .rotates = false,
                                    .encode = EncodeFloat32,
                                    .decode = DecodeFloat32,
                                    .validate = Validate<DecodeFloat32>,
                                    .sum_squares = SumSquares<DecodeFloat32>};

const BlockFormat kBfloat16Format = {.id = core::CodecId::kBfloat16,
                                     .scale_bytes = 0,
                                     .code_bytes = core::kBlockValues * sizeof(uint16_t),
                                     .rotates = false,
                                     .encode = EncodeBfloat16,
                                     .decode = DecodeBfloat16,
                                     .validate = Validate<DecodeBfloat16>,
                                     .sum_squares = SumSquares<DecodeBfloat16>};

}  // namespace causeway::codecs
