// float32 and bfloat16: the values themselves, little-endian, without scales.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codecs/block_format.h"
#include "codecs/scale.h"
#include "core/bfloat16.h"
#include "core/limits.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

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
