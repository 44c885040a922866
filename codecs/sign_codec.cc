// sign: one bit a value, and gain · mean|x| of the block as scale.
//
//   bit = the float's sign bit, LSB-first   x̂ = −scale where it is set, else +scale
//
// So −0 decodes to −scale and +0 to +scale; what that adds, error feedback takes back. A block whose scale is below
// core::kMinScale decodes to ±0.
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "codecs/block_codec.h"
#include "codecs/scale.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

// The order of this sum is part of the wire format: 16 lanes, each of every 16th value, then halves on halves.
CAUSEWAY_MULTIVERSION
float SumOfMagnitudes(const float* values) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  for (int v = 0; v < core::kBlockValues / kLanes; ++v) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += std::abs(values[kLanes * v + l]);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

CAUSEWAY_MULTIVERSION
void PackSigns(const float* values, uint8_t* codes) {
  for (int64_t byte = 0; byte < core::kBlockValues / 8; ++byte) {
    uint32_t bits = 0;
    for (int k = 0; k < 8; ++k) bits |= (std::bit_cast<uint32_t>(values[8 * byte + k]) >> 31) << k;
    codes[byte] = static_cast<uint8_t>(bits);
  }
}

CAUSEWAY_MULTIVERSION
void UnpackSigns(const uint8_t* codes, float scale, float* values) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(scale);
  for (int64_t byte = 0; byte < core::kBlockValues / 8; ++byte) {
    for (int k = 0; k < 8; ++k) {
      const uint32_t negative = (codes[byte] >> k) & 1u;
      values[8 * byte + k] = std::bit_cast<float>(magnitude | (negative << 31));
    }
  }
}

class SignCodec final : public BlockCodec {
 public:
  int64_t scale_bytes() const override { return kScaleBytes; }
  int64_t code_bytes() const override { return core::kBlockValues / 8; }

 private:
  void EncodeBlock(ConstBlockValues values, int64_t valid, float gain, uint8_t* scale, uint8_t* codes) const override {
    const float mean = SumOfMagnitudes(values.data()) * (1.0f / static_cast<float>(valid));
    StoreScale(gain * mean, scale);
    PackSigns(values.data(), codes);
  }
  void DecodeBlock(const uint8_t* scale, const uint8_t* codes, BlockValues values) const override {
    UnpackSigns(codes, LoadScale(scale), values.data());
  }
  absl::Status ValidateBlock(const uint8_t* scale, const uint8_t* codes, int64_t valid) const override {
    if (absl::Status status = ValidateScale(scale); !status.ok()) return status;
    for (int64_t i = valid; i < core::kBlockValues; ++i) {
      if ((codes[i / 8] >> (i % 8)) & 1) {
        return absl::InvalidArgumentError(absl::StrCat("expected padding of +0, got a negative sign at ", i));
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

const Codec& Sign() {
  static const SignCodec codec;
  return codec;
}

}  // namespace causeway::codecs
