// int8 and int4: symmetric integers, the block's largest magnitude as scale.
//
//   scale = bf16(absmax)   inv = L / scale   q = rne(x · inv), clamped to ±L   x̂ = q · (scale / L)      L = 127 or 7
//
// The clamp is for an absmax that bf16 rounded down. Every division is one rounding, done once a block.
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codecs/block_codec.h"
#include "codecs/scale.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

constexpr float kInt8Levels = 127;
constexpr float kInt4Levels = 7;
constexpr uint32_t kInt4Zero = 8;  // q is stored as q + 8, so nibble 0 is never written

// Layout of int4: one 64-byte line for 128 values; dword l, nibble v is value 16 v + l. So a vector of 16 dwords
// decodes 16 neighbouring values with one shift and one mask.
constexpr int kLanes = 16;
constexpr int kNibbles = 8;
constexpr int kLineValues = kLanes * kNibbles;
constexpr int kLinesPerBlock = core::kBlockValues / kLineValues;

// Magnitudes of floats are ordered as their bits are; a maximum of integers vectorises without leave to reorder floats.
CAUSEWAY_MULTIVERSION
float LargestMagnitude(const float* values) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu;
    largest = largest < magnitude ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

// rne(scaled) clamped to ±levels. Adding 1.5 · 2^23 leaves no bit for a fraction, so the sum is rounded to nearest even
// and its low bits are the integer.
inline int32_t Quantize(float scaled, float levels) {
  const float up = scaled < levels ? scaled : levels;
  const float clamped = up > -levels ? up : -levels;
  constexpr float kRounder = 0x1.8p23f;
  return std::bit_cast<int32_t>(clamped + kRounder) - std::bit_cast<int32_t>(kRounder);
}

CAUSEWAY_MULTIVERSION
void QuantizeInt8(const float* values, float inverse, uint8_t* codes) {
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    codes[i] = static_cast<uint8_t>(Quantize(values[i] * inverse, kInt8Levels));
  }
}

CAUSEWAY_MULTIVERSION
void DequantizeInt8(const uint8_t* codes, float step, float* values) {
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    values[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * step;
  }
}

CAUSEWAY_MULTIVERSION
void QuantizeInt4Line(const float* values, float inverse, uint8_t* line) {
  uint32_t words[kLanes] = {};
  for (int v = 0; v < kNibbles; ++v) {
    for (int l = 0; l < kLanes; ++l) {
      const uint32_t nibble = Quantize(values[kLanes * v + l] * inverse, kInt4Levels) + kInt4Zero;
      words[l] |= nibble << (4 * v);
    }
  }
  std::memcpy(line, words, sizeof(words));
}

CAUSEWAY_MULTIVERSION
void DequantizeInt4Line(const uint8_t* line, float step, float* values) {
  uint32_t words[kLanes];
  std::memcpy(words, line, sizeof(words));
  for (int v = 0; v < kNibbles; ++v) {
    for (int l = 0; l < kLanes; ++l) {
      const int32_t nibble = (words[l] >> (4 * v)) & 15u;
      values[kLanes * v + l] = static_cast<float>(nibble - static_cast<int32_t>(kInt4Zero)) * step;
    }
  }
}

float Inverse(float levels, float scale) { return scale == 0 ? 0.0f : levels / scale; }

// What both demand of a block's integers: |q| ≤ levels, zero in padding and everywhere where the scale is zero.
absl::Status ValidateIntegers(const uint8_t* scale, const int32_t* integers, int32_t levels, int64_t valid) {
  if (absl::Status status = ValidateScale(scale); !status.ok()) return status;
  const int64_t may_differ_from_zero = LoadScale(scale) == 0 ? 0 : valid;
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const int32_t limit = i < may_differ_from_zero ? levels : 0;
    if (integers[i] < -limit || integers[i] > limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected integers of at most ", limit, " in magnitude, got ", integers[i], " at ", i));
    }
  }
  return absl::OkStatus();
}

class Int8Codec final : public BlockCodec {
 public:
  int64_t scale_bytes() const override { return kScaleBytes; }
  int64_t code_bytes() const override { return core::kBlockValues; }

 private:
  void EncodeBlock(ConstBlockValues values, int64_t, float, uint8_t* scale, uint8_t* codes) const override {
    const float stored = StoreScale(LargestMagnitude(values.data()), scale);
    QuantizeInt8(values.data(), Inverse(kInt8Levels, stored), codes);
  }
  void DecodeBlock(const uint8_t* scale, const uint8_t* codes, BlockValues values) const override {
    DequantizeInt8(codes, LoadScale(scale) / kInt8Levels, values.data());
  }
  absl::Status ValidateBlock(const uint8_t* scale, const uint8_t* codes, int64_t valid) const override {
    int32_t integers[core::kBlockValues];
    for (int64_t i = 0; i < core::kBlockValues; ++i) integers[i] = static_cast<int8_t>(codes[i]);
    return ValidateIntegers(scale, integers, static_cast<int32_t>(kInt8Levels), valid);
  }
};

class Int4Codec final : public BlockCodec {
 public:
  int64_t scale_bytes() const override { return kScaleBytes; }
  int64_t code_bytes() const override { return core::kBlockValues / 2; }

 private:
  static constexpr int kLineBytes = kLineValues / 2;

  void EncodeBlock(ConstBlockValues values, int64_t, float, uint8_t* scale, uint8_t* codes) const override {
    const float stored = StoreScale(LargestMagnitude(values.data()), scale);
    const float inverse = Inverse(kInt4Levels, stored);
    for (int line = 0; line < kLinesPerBlock; ++line) {
      QuantizeInt4Line(&values[line * kLineValues], inverse, codes + line * kLineBytes);
    }
  }
  void DecodeBlock(const uint8_t* scale, const uint8_t* codes, BlockValues values) const override {
    const float step = LoadScale(scale) / kInt4Levels;
    for (int line = 0; line < kLinesPerBlock; ++line) {
      DequantizeInt4Line(codes + line * kLineBytes, step, &values[line * kLineValues]);
    }
  }
  absl::Status ValidateBlock(const uint8_t* scale, const uint8_t* codes, int64_t valid) const override {
    float whole[core::kBlockValues];
    for (int line = 0; line < kLinesPerBlock; ++line) {
      DequantizeInt4Line(codes + line * kLineBytes, 1.0f, &whole[line * kLineValues]);
    }
    int32_t integers[core::kBlockValues];
    for (int64_t i = 0; i < core::kBlockValues; ++i) integers[i] = static_cast<int32_t>(whole[i]);
    return ValidateIntegers(scale, integers, static_cast<int32_t>(kInt4Levels), valid);
  }
};

}  // namespace

const Codec& Int8() {
  static const Int8Codec codec;
  return codec;
}

const Codec& Int4() {
  static const Int4Codec codec;
  return codec;
}

}  // namespace causeway::codecs
