// sign and rotated_sign: one bit a value, and gain · mean|x| of the block as scale.
//
//   bit = the float's sign bit, LSB-first   x̂ = −scale where it is set, else +scale
//
// So −0 decodes to −scale and +0 to +scale; error feedback corrects the resulting error. A block whose scale is below
// core::kMinScale decodes to ±0. Rotated, it is DRIVE (arXiv 2105.08339) with the least-squares scale.
#include "absl/strings/str_cat.h"
#include "codecs/block_format.h"
#include "codecs/scale.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

CAUSEWAY_MULTIVERSION
float SumOfMagnitudes(const float* d) {
  return SumOverBlock<float>([&](int i, float sum) { return sum + std::abs(d[i]); });
}

CAUSEWAY_MULTIVERSION
void WriteSigns(const float* d, uint8_t* plane) {
  WritePlane(plane, [&](int64_t i) { return SignBit(d[i]); });
}

template <bool kRotates>
constexpr float kScaleLimit = kRotates ? kMaxRotatedMagnitude : core::kMaxMagnitude;

template <bool kRotates>
void EncodeSign(ConstBlockSpan d, float inverse_count, float gain, uint8_t* scale, uint8_t* codes) {
  const float mean = SumOfMagnitudes(d.data()) * inverse_count;
  StoreScale(gain * mean, scale, kScaleLimit<kRotates>);
  WriteSigns(d.data(), codes);
}

CAUSEWAY_MULTIVERSION
void DecodeSign(const uint8_t* scale, const uint8_t* codes, BlockSpan values) {
  const float stored = LoadScale(scale);
  for (int64_t i = 0; i < core::kBlockValues; ++i) values[i] = WithSign(stored, PlaneBit(codes, i));
}

double SumSquaresSign(const uint8_t* scale, const uint8_t*, int64_t valid) {
  return Square(LoadScale(scale)) * static_cast<double>(valid);
}

template <bool kRotates>
absl::Status ValidateSign(const uint8_t* scale, const uint8_t* codes, int64_t valid) {
  RETURN_IF_ERROR(ValidateScale(LoadScale(scale), kScaleLimit<kRotates>));
  return ValidatePlanePadding(codes, valid);
}

// How many nibbles have each magnitude: the three bits of 64 nibbles make three dense words, and what they have in
// common is counted.
CAUSEWAY_MULTIVERSION
void CountMagnitudes(const uint8_t* codes, uint32_t (&counts)[8]) {
  constexpr uint64_t kLowest = 0x1111111111111111;  // of each nibble
  for (int64_t at = 0; at < kNibbleBytes; at += 4 * sizeof(uint64_t)) {
    uint64_t words[4], bits[3] = {};
    std::memcpy(words, codes + at, sizeof(words));
    for (int bit = 0; bit < 3; ++bit) {
      for (int w = 0; w < 4; ++w) bits[bit] |= ((words[w] >> bit) & kLowest) << w;
    }
    for (int k = 0; k < 8; ++k) {
      const uint64_t low = (k & 1) != 0 ? bits[0] : ~bits[0];
      const uint64_t middle = (k & 2) != 0 ? bits[1] : ~bits[1];
      const uint64_t high = (k & 4) != 0 ? bits[2] : ~bits[2];
      counts[k] += static_cast<uint32_t>(std::popcount(low & middle & high));
    }
  }
}

}  // namespace

double SumOverMagnitudes(const uint8_t* codes, const double (&squares)[8]) {
  uint32_t counts[8] = {};
  CountMagnitudes(codes, counts);
  double sum = 0;
  for (int k = 0; k < 8; ++k) sum += squares[k] * counts[k];
  return sum;
}

absl::Status ValidatePlanePadding(const uint8_t* plane, int64_t valid) {
  for (int64_t i = valid; i < core::kBlockValues; ++i) {
    if (PlaneBit(plane, i)) {
      return absl::InvalidArgumentError(absl::StrCat("expected padding of +0, got a negative sign at ", i));
    }
  }
  return absl::OkStatus();
}

const BlockFormat kSignFormat = {.id = core::CodecId::kSign,
                                 .scale_bytes = kScaleBytes,
                                 .code_bytes = kPlaneBytes,
                                 .rotates = false,
                                 .encode = EncodeSign<false>,
                                 .decode = DecodeSign,
                                 .validate = ValidateSign<false>,
                                 .sum_squares = SumSquaresSign};

const BlockFormat kRotatedSignFormat = {.id = core::CodecId::kRotatedSign,
                                        .scale_bytes = kScaleBytes,
                                        .code_bytes = kPlaneBytes,
                                        .rotates = true,
                                        .encode = EncodeSign<true>,
                                        .decode = DecodeSign,
                                        .validate = ValidateSign<true>,
                                        .sum_squares = SumSquaresSign};

}  // namespace causeway::codecs
