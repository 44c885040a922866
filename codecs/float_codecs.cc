// float32 and bfloat16: the values themselves, little-endian, without scales.
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codecs/block_codec.h"
#include "codecs/scale.h"
#include "core/limits.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

CAUSEWAY_MULTIVERSION
void RoundToBfloat16(const float* values, uint8_t* codes) {
  for (int64_t i = 0; i < core::kBlockValues; ++i) {
    const uint16_t bits = ToBfloat16(values[i]);
    std::memcpy(codes + i * sizeof(bits), &bits, sizeof(bits));
  }
}

// Values below the limit (which NaN is not), and padding of +0, which is bits of all zero.
absl::Status ValidateValues(ConstBlockValues values, int64_t valid) {
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

class Float32Codec final : public BlockCodec {
 public:
  int64_t scale_bytes() const override { return 0; }
  int64_t code_bytes() const override { return core::kBlockValues * sizeof(float); }

 private:
  void EncodeBlock(ConstBlockValues values, int64_t, float, uint8_t*, uint8_t* codes) const override {
    std::memcpy(codes, values.data(), values.size_bytes());
  }
  void DecodeBlock(const uint8_t*, const uint8_t* codes, BlockValues values) const override {
    std::memcpy(values.data(), codes, values.size_bytes());
  }
  absl::Status ValidateBlock(const uint8_t* scale, const uint8_t* codes, int64_t valid) const override {
    float values[core::kBlockValues];
    DecodeBlock(scale, codes, values);
    return ValidateValues(values, valid);
  }
};

class Bfloat16Codec final : public BlockCodec {
 public:
  int64_t scale_bytes() const override { return 0; }
  int64_t code_bytes() const override { return core::kBlockValues * sizeof(uint16_t); }

 private:
  void EncodeBlock(ConstBlockValues values, int64_t, float, uint8_t*, uint8_t* codes) const override {
    RoundToBfloat16(values.data(), codes);
  }
  void DecodeBlock(const uint8_t*, const uint8_t* codes, BlockValues values) const override {
    uint16_t bits[core::kBlockValues];
    std::memcpy(bits, codes, sizeof(bits));
    for (int64_t i = 0; i < core::kBlockValues; ++i) values[i] = FromBfloat16(bits[i]);
  }
  absl::Status ValidateBlock(const uint8_t* scale, const uint8_t* codes, int64_t valid) const override {
    float values[core::kBlockValues];
    DecodeBlock(scale, codes, values);
    return ValidateValues(values, valid);
  }
};

}  // namespace

const Codec& Float32() {
  static const Float32Codec codec;
  return codec;
}

const Codec& Bfloat16() {
  static const Bfloat16Codec codec;
  return codec;
}

}  // namespace causeway::codecs
