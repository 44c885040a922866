// int8 and int4: symmetric integers, the block's largest magnitude as scale.
//
//   scale = bf16(absmax)   inv = L / scale   q = rne(x · inv), clamped to ±L   x̂ = q · (scale / L)      L = 127 or 7
//
// The clamp is for an absmax that bf16 rounded down. Every division is one rounding, done once a block.
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codecs/block_format.h"
#include "codecs/scale.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

constexpr float kInt8Levels = 127;
constexpr float kInt4Levels = 7;
constexpr int32_t kInt4Zero = 8;  // q is stored as q + 8, so nibble 0 is never written

// rne(scaled) clamped to ±levels. Adding 1.5 · 2^23 leaves no bit for a fraction, so the sum is rounded to nearest even
// and its low bits are the integer.
inline int32_t Quantize(float scaled, float levels) {
  const float up = scaled < levels ? scaled : levels;
  const float clamped = up > -levels ? up : -levels;
  constexpr float kRounder = 0x1.8p23f;
  return std::bit_cast<int32_t>(clamped + kRounder) - std::bit_cast<int32_t>(kRounder);
}

float Inverse(float levels, float scale) { return scale == 0 ? 0.0f : levels / scale; }

CAUSEWAY_MULTIVERSION
void EncodeInt8(ConstBlockSpan d, float, float, uint8_t* scale, uint8_t* codes) {
  const float inverse = Inverse(kInt8Levels, StoreScale(LargestMagnitude(d.data()), scale));
  for (int64_t i = 0; i < core::kBlockValues; ++i)
    codes[i] = static_cast<uint8_t>(Quantize(d[i] * inverse, kInt8Levels));
}

CAUSEWAY_MULTIVERSION
void DecodeInt8(const uint8_t* scale, const uint8_t* codes, BlockSpan values) {
  const float step = LoadScale(scale) / kInt8Levels;
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    values[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * step;
  }
}

CAUSEWAY_MULTIVERSION
void EncodeInt4(ConstBlockSpan d, float, float, uint8_t* scale, uint8_t* codes) {
  const float inverse = Inverse(kInt4Levels, StoreScale(LargestMagnitude(d.data()), scale));
  WriteNibbles(codes, [&](int64_t i) { return Quantize(d[i] * inverse, kInt4Levels) + kInt4Zero; });
}

CAUSEWAY_MULTIVERSION
void DecodeInt4(const uint8_t* scale, const uint8_t* codes, BlockSpan values) {
  const float step = LoadScale(scale) / kInt4Levels;
  ReadNibbles(codes, [&](int64_t i, uint32_t nibble) {
    values[i] = static_cast<float>(static_cast<int32_t>(nibble) - kInt4Zero) * step;
  });
}

// |q| ≤ levels, zero in padding and everywhere where the scale is zero. Only the first bad one needs a message.
CAUSEWAY_MULTIVERSION
int64_t FirstBad(const int8_t* integers, int32_t levels, int64_t valid) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const int32_t limit = i < valid ? levels : 0;
    bad |= static_cast<uint32_t>(integers[i] < -limit) | static_cast<uint32_t>(integers[i] > limit);
  }
  if (bad == 0) return core::kBlockValues;
  int64_t i = 0;
  while (i < valid ? std::abs(integers[i]) <= levels : integers[i] == 0) ++i;
  return i;
}

absl::Status ValidateIntegers(const uint8_t* scale, const int8_t* integers, int32_t levels, int64_t valid) {
  RETURN_IF_ERROR(ValidateScale(LoadScale(scale)));
  if (LoadScale(scale) == 0) valid = 0;
  const int64_t bad = FirstBad(integers, levels, valid);
  if (bad == core::kBlockValues) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected integers of at most ", bad < valid ? levels : 0,
                                                 " in magnitude, got ", integers[bad], " at ", bad));
}

absl::Status ValidateInt8(const uint8_t* scale, const uint8_t* codes, int64_t valid) {
  int8_t integers[core::kBlockValues];
  std::memcpy(integers, codes, sizeof(integers));
  return ValidateIntegers(scale, integers, static_cast<int32_t>(kInt8Levels), valid);
}

CAUSEWAY_MULTIVERSION
void UnpackInt4(const uint8_t* codes, int8_t* integers) {
  ReadNibbles(codes, [&](int64_t i, uint32_t nibble) {
    integers[i] = static_cast<int8_t>(static_cast<int32_t>(nibble) - kInt4Zero);
  });
}

// Whether any of the block's nibbles is 0, eight bytes at a time: it would be −8, which no encoder writes.
bool AnyZeroNibble(const uint8_t* codes) {
  constexpr uint64_t kOnes = 0x0101010101010101, kLow = 0x0f0f0f0f0f0f0f0f, kHigh = 0x8080808080808080;
  uint64_t zeros = 0;
  for (int64_t i = 0; i < core::kBlockValues / 2; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, codes + i, sizeof(word));
    const uint64_t low = word & kLow, high = (word >> 4) & kLow;
    zeros |= ((low - kOnes) & ~low) | ((high - kOnes) & ~high);
  }
  return (zeros & kHigh) != 0;
}

absl::Status ValidateInt4(const uint8_t* scale, const uint8_t* codes, int64_t valid) {
  if (valid == core::kBlockValues && LoadScale(scale) != 0 && !AnyZeroNibble(codes)) {
    return ValidateScale(LoadScale(scale));  // nearly all blocks
  }
  int8_t integers[core::kBlockValues];
  UnpackInt4(codes, integers);
  return ValidateIntegers(scale, integers, static_cast<int32_t>(kInt4Levels), valid);
}

CAUSEWAY_MULTIVERSION
int32_t SumOfSquares8(const int8_t* integers) {
  int32_t sum = 0;
  for (int64_t i = 0; i < core::kBlockValues; ++i) sum += int32_t{integers[i]} * int32_t{integers[i]};
  return sum;
}

// 256 squares of at most 64 fit 16 bits.
CAUSEWAY_MULTIVERSION
uint16_t SumOfSquares4(const uint8_t* codes) {
  uint16_t sum = 0;
  for (int64_t i = 0; i < kNibbleBytes; ++i) {
    const auto low = static_cast<int16_t>((codes[i] & 15) - kInt4Zero);
    const auto high = static_cast<int16_t>((codes[i] >> 4) - kInt4Zero);
    sum = static_cast<uint16_t>(sum + static_cast<uint16_t>(low * low) + static_cast<uint16_t>(high * high));
  }
  return sum;
}

double SumSquaresInt8(const uint8_t* scale, const uint8_t* codes, int64_t) {
  return Square(LoadScale(scale) / kInt8Levels) * SumOfSquares8(reinterpret_cast<const int8_t*>(codes));
}

double SumSquaresInt4(const uint8_t* scale, const uint8_t* codes, int64_t) {
  return Square(LoadScale(scale) / kInt4Levels) * SumOfSquares4(codes);
}

}  // namespace

const BlockFormat kInt8Format = {.id = core::CodecId::kInt8,
                                 .scale_bytes = kScaleBytes,
                                 .code_bytes = core::kBlockValues,
                                 .rotates = false,
                                 .encode = EncodeInt8,
                                 .decode = DecodeInt8,
                                 .validate = ValidateInt8,
                                 .sum_squares = SumSquaresInt8};

const BlockFormat kInt4Format = {.id = core::CodecId::kInt4,
                                 .scale_bytes = kScaleBytes,
                                 .code_bytes = kNibbleBytes,
                                 .rotates = false,
                                 .encode = EncodeInt4,
                                 .decode = DecodeInt4,
                                 .validate = ValidateInt4,
                                 .sum_squares = SumSquaresInt4};

}  // namespace causeway::codecs
