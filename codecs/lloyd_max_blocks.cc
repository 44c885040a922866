// rotated_lm2 and rotated_lm4: after the rotation a block is nearly Gaussian, and the best levels for one are known.
//
//   |d| / rms ─► code of the Lloyd-Max level c (unit Gaussian) ─► scale = ⟨|d|, c⟩ / ⟨c, c⟩ ─► x̂ = ±c · scale
//
// The codes come from the rms, the scale is then the least-squares one for them (EDEN, arXiv 2108.08842). Everything is
// computed on z = d / 2^E with 2^E at or below the largest |d|, so that no square underflows or overflows.
#include "codecs/block_format.h"
#include "codecs/scale.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

constexpr float kLevels2[] = {0.4528f, 1.5104f};
constexpr float kThresholds2[] = {0.9816f};
constexpr float kLevels4[] = {0.1284f, 0.3880f, 0.6568f, 0.9423f, 1.2562f, 1.6180f, 2.0690f, 2.7326f};
constexpr float kThresholds4[] = {0.2582f, 0.5224f, 0.79955f, 1.09925f, 1.4371f, 1.8435f, 2.4008f};
constexpr uint32_t kSignNibble = 8;
constexpr uint32_t kExponentMask = 0x7f800000u;

// Codes of a block's magnitudes, and its scale before it is rounded.
struct Quantized {
  uint8_t codes[core::kBlockValues];
  float scale;
};

template <int kNumThresholds>
inline Quantized Quantize(const float* d, const float* levels, const float (&thresholds)[kNumThresholds]) {
  const float largest = LargestMagnitude(d);
  const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(largest) & kExponentMask);  // 2^E
  const float p = largest < core::kMinScale ? 0.0f : 1 / power;                                // exact
  const float square = SumOverBlock<float>([&](int i, float sum) {
    const float z = d[i] * p;
    return std::fma(z, z, sum);
  });
  const float inverse_rms = p == 0 ? 0.0f : 1 / std::sqrt(square * 0x1p-8f);
  Quantized result;
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const float t = std::abs(d[i] * p) * inverse_rms;
    uint32_t code = 0;
    for (float threshold : thresholds) code += t >= threshold ? 1 : 0;
    result.codes[i] = static_cast<uint8_t>(code);
  }
  const float product =
      SumOverBlock<float>([&](int i, float sum) { return std::fma(std::abs(d[i] * p), levels[result.codes[i]], sum); });
  const float norm = SumOverBlock<float>([&](int i, float sum) {
    const float c = levels[result.codes[i]];
    return std::fma(c, c, sum);
  });
  result.scale = p == 0 ? 0.0f : product / norm * power;
  return result;
}

CAUSEWAY_MULTIVERSION
void EncodeLm2(ConstBlockSpan d, float, float, uint8_t* scale, uint8_t* codes) {
  const Quantized quantized = Quantize(d.data(), kLevels2, kThresholds2);
  StoreScale(quantized.scale, scale, kMaxRotatedMagnitude);
  WritePlane(codes, [&](int64_t i) { return SignBit(d[i]); });
  WritePlane(codes + kPlaneBytes, [&](int64_t i) { return quantized.codes[i] != 0; });
}

CAUSEWAY_MULTIVERSION
void DecodeLm2(const uint8_t* scale, const uint8_t* codes, BlockSpan values) {
  const float stored = LoadScale(scale);
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const float level = kLevels2[PlaneBit(codes + kPlaneBytes, i) ? 1 : 0];
    values[i] = WithSign(level * stored, PlaneBit(codes, i));
  }
}

CAUSEWAY_MULTIVERSION
void EncodeLm4(ConstBlockSpan d, float, float, uint8_t* scale, uint8_t* codes) {
  const Quantized quantized = Quantize(d.data(), kLevels4, kThresholds4);
  StoreScale(quantized.scale, scale, kMaxRotatedMagnitude);
  WriteNibbles(codes, [&](int64_t i) { return quantized.codes[i] | (SignBit(d[i]) ? kSignNibble : 0u); });
}

CAUSEWAY_MULTIVERSION
void DecodeLm4(const uint8_t* scale, const uint8_t* codes, BlockSpan values) {
  const float stored = LoadScale(scale);
  ReadNibbles(codes, [&](int64_t i, uint32_t nibble) {
    values[i] = WithSign(kLevels4[nibble & 7u] * stored, (nibble & kSignNibble) != 0);
  });
}

double SumSquaresLm2(const uint8_t* scale, const uint8_t* codes, int64_t) {
  int64_t high = 0;
  for (int64_t i = 0; i < kPlaneBytes; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, codes + kPlaneBytes + i, sizeof(word));
    high += std::popcount(word);
  }
  const float stored = LoadScale(scale);
  return Square(kLevels2[0] * stored) * static_cast<double>(core::kBlockValues - high) +
         Square(kLevels2[1] * stored) * static_cast<double>(high);
}

double SumSquaresLm4(const uint8_t* scale, const uint8_t* codes, int64_t) {
  double squares[8];
  for (int k = 0; k < 8; ++k) squares[k] = Square(kLevels4[k] * LoadScale(scale));
  return SumOverMagnitudes(codes, squares);
}

// All codes are written, in the padding too, which is not zero after the rotation.
absl::Status ValidateLloydMax(const uint8_t* scale, const uint8_t*, int64_t) {
  return ValidateScale(LoadScale(scale), kMaxRotatedMagnitude);
}

}  // namespace

const BlockFormat kRotatedLm2Format = {.id = core::CodecId::kRotatedLm2,
                                       .scale_bytes = kScaleBytes,
                                       .code_bytes = 2 * kPlaneBytes,
                                       .rotates = true,
                                       .encode = EncodeLm2,
                                       .decode = DecodeLm2,
                                       .validate = ValidateLloydMax,
                                       .sum_squares = SumSquaresLm2};

const BlockFormat kRotatedLm4Format = {.id = core::CodecId::kRotatedLm4,
                                       .scale_bytes = kScaleBytes,
                                       .code_bytes = kNibbleBytes,
                                       .rotates = true,
                                       .encode = EncodeLm4,
                                       .decode = DecodeLm4,
                                       .validate = ValidateLloydMax,
                                       .sum_squares = SumSquaresLm4};

}  // namespace causeway::codecs
