#include "codecs/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/layout.h"
#include "core/limits.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

struct Encoded {
  std::vector<uint8_t> scales, codes;
};

Encoded Encode(CodecId id, std::span<const float> values, float gain = 1) {
  const Codec& codec = GetCodec(id);
  const int64_t blocks = core::BlocksFor(values.size());
  Encoded encoded = {std::vector<uint8_t>(blocks * codec.scale_bytes()),
                     std::vector<uint8_t>(blocks * codec.code_bytes())};
  codec.Encode(values, gain, encoded.scales.data(), encoded.codes.data());
  return encoded;
}

std::vector<float> Decode(CodecId id, const Encoded& encoded, size_t count) {
  std::vector<float> values(count);
  GetCodec(id).Decode(encoded.scales.data(), encoded.codes.data(), values);
  return values;
}

std::vector<float> RoundTrip(CodecId id, std::span<const float> values, float gain = 1) {
  return Decode(id, Encode(id, values, gain), values.size());
}

// Truncation to the upper 16 bits after adding half of what is cut, ties to even: another writing than the codec's.
float NearestBfloat16(float value) {
  const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
  const float above = std::bit_cast<float>((std::bit_cast<uint32_t>(value) & 0xffff0000u) + 0x10000u);
  const double to_below = std::abs(static_cast<double>(value) - below);
  const double to_above = std::abs(static_cast<double>(above) - value);
  if (to_below != to_above) return to_below < to_above ? below : above;
  return (std::bit_cast<uint32_t>(below) >> 16) % 2 == 0 ? below : above;
}

// docs/wire_format.md, section "Codecs", value by value.
std::vector<float> BySpecification(CodecId id, std::span<const float> values, float gain) {
  std::vector<float> decoded;
  for (size_t begin = 0; begin < values.size(); begin += 256) {
    const std::span<const float> block = values.subspan(begin, std::min<size_t>(256, values.size() - begin));
    float absmax = 0;
    for (float x : block) absmax = std::max(absmax, std::abs(x));
    float lanes[16] = {};
    for (size_t i = 0; i < block.size(); ++i) lanes[i % 16] += std::abs(block[i]);
    for (int half : {8, 4, 2, 1}) {
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    const float mean = lanes[0] * (1.0f / static_cast<float>(block.size()));
    const float levels = id == CodecId::kInt8 ? 127 : 7;
    float scale = NearestBfloat16(id == CodecId::kSign ? gain * mean : absmax);
    if (scale < 0x1p-100f) scale = 0;
    for (float x : block) {
      float y = x;
      if (id == CodecId::kBfloat16) y = NearestBfloat16(x);
      if (id == CodecId::kSign) y = std::signbit(x) ? -scale : scale;
      if (id == CodecId::kInt8 || id == CodecId::kInt4) {
        const float inverse = scale == 0 ? 0 : levels / scale;
        const float step = scale / levels;
        const int q =
            static_cast<int>(std::nearbyint(std::max(-levels, std::min(levels, std::nearbyint(x * inverse)))));
        y = static_cast<float>(q) * step;
      }
      decoded.push_back(y);
    }
  }
  return decoded;
}

class EveryCodec : public ::testing::TestWithParam<CodecId> {};

TEST_P(EveryCodec, DecodesToWhatTheSpecificationSaysBitForBit) {
  for (size_t count : {1, 2, 15, 16, 17, 255, 256, 257, 511, 4096, 4097, 10'000}) {
    for (float magnitude : {1.0f, 3e-20f, 1e25f}) {
      std::vector<float> values = UniformValues(count, count);
      for (float& value : values) value *= magnitude;
      for (float gain : {1.0f, 1.25f}) {
        EXPECT_EQ(Bits(RoundTrip(GetParam(), values, gain)), Bits(BySpecification(GetParam(), values, gain)))
            << count << " values of magnitude " << magnitude;
      }
    }
  }
}

TEST_P(EveryCodec, DecodeAddIsOneFmaOfTheDecodedValue) {
  const std::vector<float> values = UniformValues(5000, 1);
  const Encoded encoded = Encode(GetParam(), values);
  const std::vector<float> decoded = Decode(GetParam(), encoded, values.size());
  std::vector<float> sum = UniformValues(5000, 2), expected = sum;
  for (size_t i = 0; i < sum.size(); ++i) expected[i] = std::fma(0.3f, decoded[i], expected[i]);
  GetCodec(GetParam()).DecodeAdd(encoded.scales.data(), encoded.codes.data(), 0.3f, sum);
  EXPECT_EQ(Bits(sum), Bits(expected));
}

TEST_P(EveryCodec, AcceptsWhatItWrites) {
  for (size_t count : {1, 100, 256, 300, 4097}) {
    std::vector<float> values = UniformValues(count, count);
    values[0] = -0.0f;
    const Encoded encoded = Encode(GetParam(), values);
    EXPECT_TRUE(GetCodec(GetParam()).Validate(encoded.scales.data(), encoded.codes.data(), count).ok());
  }
}

// Zeros, both signs of them, denormals, and a block whose scale would be below 2^-100.
TEST_P(EveryCodec, TinyValuesDecodeToThemselvesOrToZero) {
  const float denormal = std::numeric_limits<float>::denorm_min();
  for (float tiny : {0.0f, -0.0f, denormal, -denormal, 1e-38f, -1e-38f, 0x1p-101f}) {
    const std::vector<float> values(300, tiny);
    const bool keeps = GetParam() == CodecId::kFloat32 || GetParam() == CodecId::kBfloat16;
    for (float decoded : RoundTrip(GetParam(), values)) {
      EXPECT_EQ(decoded, keeps ? BySpecification(GetParam(), values, 1)[0] : 0.0f) << tiny;
      EXPECT_LE(std::abs(decoded - tiny), std::abs(tiny));
    }
  }
}

TEST_P(EveryCodec, LargestValueStaysBelowTheLimit) {
  const float largest = std::nextafter(core::kMaxMagnitude, 0.0f);
  std::vector<float> values(256, largest);
  values[3] = -largest;
  const Encoded encoded = Encode(GetParam(), values, 1.25f);
  EXPECT_TRUE(GetCodec(GetParam()).Validate(encoded.scales.data(), encoded.codes.data(), 256).ok());
  for (float decoded : Decode(GetParam(), encoded, 256)) {
    EXPECT_LT(std::abs(decoded), core::kMaxMagnitude);
    EXPECT_GT(std::abs(decoded), 0.99f * largest);
  }
}

TEST_P(EveryCodec, OutlierCostsItsOwnBlockAlone) {
  std::vector<float> values = UniformValues(768, 4);
  const std::vector<float> without = RoundTrip(GetParam(), values);
  values[300] = 1e30f;
  const std::vector<float> with = RoundTrip(GetParam(), values);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(std::isfinite(with[i]));
    if (i / 256 != 1) {
      EXPECT_EQ(with[i], without[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(Float32, KeepsEveryBit) {
  std::vector<float> values = UniformValues(5000, 1);
  values[7] = -0.0f;
  values[8] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(Bits(RoundTrip(CodecId::kFloat32, values)), Bits(values));
}

TEST(Bfloat16, RoundsTiesToEven) {
  // 1 + 2^-8 is halfway between 1 and 1 + 2^-7; 1 + 3 · 2^-8 between 1 + 2^-7 and 1 + 2^-6.
  const std::vector<float> values = {1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-8f + 0x1p-20f, -1 - 0x1p-8f};
  EXPECT_EQ(RoundTrip(CodecId::kBfloat16, values), (std::vector<float>{1, 1 + 0x1p-6f, 1 + 0x1p-7f, -1}));
}

TEST(Int8, ErrorIsAtMostHalfAStepAndAScalesRounding) {
  const std::vector<float> values = UniformValues(4096, 9);
  const std::vector<float> decoded = RoundTrip(CodecId::kInt8, values);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_LE(std::abs(decoded[i] - values[i]), 0.5f / 127 + 0x1p-8f);
}

TEST(Sign, NegativeZeroDecodesToMinusTheScale) {
  const std::vector<float> values = {-0.0f, 0.0f, 3.0f, -1.0f};
  EXPECT_EQ(RoundTrip(CodecId::kSign, values), (std::vector<float>{-1, 1, 1, -1}));
}

TEST(Sign, MeanIsOverTheValuesAndNotThePadding) {
  EXPECT_EQ(RoundTrip(CodecId::kSign, std::vector<float>{2.0f}), std::vector<float>{2.0f});
  EXPECT_EQ(RoundTrip(CodecId::kSign, std::vector<float>{2.0f}, 1.25f), std::vector<float>{2.5f});
}

// PROTOCOL.md section 4 expects these for a Gaussian and says: an implementation that misses them is wrong.
double RelativeSquaredErrorOfGaussian(CodecId id) {
  const size_t count = 1 << 18;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const double radius = std::sqrt(-2 * std::log(1 - core::UnitInterval(core::HashCombine(1, i))));
    values[i] = static_cast<float>(radius * std::cos(2 * M_PI * core::UnitInterval(core::HashCombine(2, i))));
  }
  const std::vector<float> decoded = RoundTrip(id, values);
  double error = 0, square = 0;
  for (size_t i = 0; i < count; ++i) {
    error += std::pow(static_cast<double>(decoded[i]) - values[i], 2);
    square += std::pow(static_cast<double>(values[i]), 2);
  }
  return error / square;
}

TEST(RelativeError, OfInt4IsTheExpectedOne) {
  EXPECT_NEAR(RelativeSquaredErrorOfGaussian(CodecId::kInt4), 0.0157, 0.03 * 0.0157);
}

TEST(RelativeError, OfSignIsTheExpectedOne) {
  EXPECT_NEAR(RelativeSquaredErrorOfGaussian(CodecId::kSign), 0.362, 0.03 * 0.362);
}

}  // namespace
}  // namespace causeway::codecs
