// The fast versions of every codec against the scalar one, which is the specification: bytes, residuals and decoded
// values to the last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "codecs/codec.h"
#include "core/layout.h"
#include "core/limits.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

constexpr CodecId kFastCodecs[] = {CodecId::kFloat32,     CodecId::kBfloat16,   CodecId::kInt8,
                                   CodecId::kInt4,        CodecId::kE3m0,       CodecId::kSign,
                                   CodecId::kRotatedSign, CodecId::kRotatedLm2, CodecId::kRotatedLm4,
                                   CodecId::kTopk32,      CodecId::kTopk,       CodecId::kTopk512};
constexpr Target kFastTargets[] = {Target::kAvx2, Target::kAvx512};
constexpr Rotation kTestRotation = {77, 5};
constexpr uint8_t kUntouched = 0xa5;
constexpr size_t kGuard = 64;  // bytes or values beyond the end that must stay as they are

// The distributions of values.
enum class Kind { kUniform, kBell, kTiny, kZeros, kDenormal, kTies, kWideRange, kOutlier };
constexpr Kind kAllKinds[] = {Kind::kUniform,  Kind::kBell, Kind::kTiny,      Kind::kZeros,
                              Kind::kDenormal, Kind::kTies, Kind::kWideRange, Kind::kOutlier};

float ValueOf(Kind kind, uint64_t bits) {
  const float uniform = static_cast<float>(2 * core::UnitInterval(bits) - 1);
  const bool negative = (bits & 1) != 0;
  switch (kind) {
    case Kind::kUniform: return uniform;
    case Kind::kBell: {  // a sum of eight has tails enough for all levels
      float sum = 0;
      for (uint64_t i = 0; i < 8; ++i)
        sum += static_cast<float>(2 * core::UnitInterval(core::HashCombine(bits, i)) - 1);
      return sum;
    }
    case Kind::kTiny: return uniform * 0x1p-100f;
    case Kind::kZeros: return negative ? -0.0f : 0.0f;
    case Kind::kDenormal: return std::bit_cast<float>(static_cast<uint32_t>(bits) & 0x807fffffu);
    case Kind::kTies: return std::nearbyint(uniform * 16) / 16;
    case Kind::kWideRange: {
      const float any = std::bit_cast<float>(static_cast<uint32_t>(bits));
      return std::abs(any) < 0x1p93f ? any : uniform * 0x1p93f;
    }
    case Kind::kOutlier: return bits % 300 == 0 ? 1000 * uniform : 1e-4f * uniform;
  }
  return 0;
}

std::vector<float> Values(Kind kind, size_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = ValueOf(kind, core::HashCombine(seed, i));
  return values;
}

enum class Feedback { kNone, kInPlace, kElsewhere };

struct Case {
  size_t count;
  size_t offset = 0;  // of every pointer, in its own elements
  Feedback feedback = Feedback::kNone;
  bool rotate = false;
  bool saturate = false;
};

std::string Text(const Case& c) {
  return testing::PrintToString(c.count) + " values at offset " + testing::PrintToString(c.offset) +
         (c.feedback == Feedback::kNone      ? ""
          : c.feedback == Feedback::kInPlace ? ", feedback in place"
                                             : ", feedback") +
         (c.rotate ? ", rotated" : "") + (c.saturate ? ", saturating" : "");
}

// All that an encode may touch.
struct Encoded {
  bool accepted;
  std::vector<uint8_t> scales, codes;
  std::vector<uint32_t> residual, next_residual;

  bool operator==(const Encoded&) const = default;
};

Encoded EncodeBy(const Codec& codec, const Case& c, const std::vector<float>& values,
                 const std::vector<float>& residual) {
  const auto count = static_cast<int64_t>(c.count);
  std::vector<float> input(c.offset), kept(c.offset), next(c.offset + residual.size() + kGuard, -1.0f);
  input.insert(input.end(), values.begin(), values.end());
  kept.insert(kept.end(), residual.begin(), residual.end());
  kept.resize(kept.size() + kGuard, -1.0f);
  Encoded encoded = {.scales = std::vector<uint8_t>(c.offset + codec.ScaleBytes(count) + kGuard, kUntouched),
                     .codes = std::vector<uint8_t>(c.offset + codec.CodeBytes(count) + kGuard, kUntouched)};
  EncodeJob job = {.values = input.data() + c.offset,
                   .count = count,
                   .gain = c.feedback == Feedback::kNone ? 1.0f : 1.25f,
                   .saturate = c.saturate,
                   .scales = encoded.scales.data() + c.offset,
                   .codes = encoded.codes.data() + c.offset};
  if (c.rotate) job.rotation = kTestRotation;
  if (c.feedback != Feedback::kNone) {
    job.beta = 0.9f;
    job.residual = kept.data() + c.offset;
    job.next_residual = c.feedback == Feedback::kInPlace ? kept.data() + c.offset : next.data() + c.offset;
  }
  encoded.accepted = codec.Encode(job);
  encoded.residual = Bits(kept);
  encoded.next_residual = Bits(next);
  return encoded;
}

std::vector<uint32_t> DecodeBy(const Codec& codec, const Case& c, const Encoded& encoded, std::vector<float> values,
                               std::optional<float> add) {
  values.insert(values.begin(), c.offset, -1.0f);
  values.resize(values.size() + kGuard, -1.0f);
  DecodeJob job = {.scales = encoded.scales.data() + c.offset,
                   .codes = encoded.codes.data() + c.offset,
                   .values = values.data() + c.offset,
                   .count = static_cast<int64_t>(c.count),
                   .add = add};
  if (c.rotate) job.rotation = kTestRotation;
  codec.Decode(job);
  return Bits(values);
}

class FastTarget : public ::testing::TestWithParam<std::tuple<CodecId, Target>> {
 protected:
  void SetUp() override {
    if (!Supported(target())) GTEST_SKIP() << "this processor or build has no " << TargetName(target());
  }

  static CodecId id() { return std::get<0>(GetParam()); }
  static Target target() { return std::get<1>(GetParam()); }
  static const Codec& fast() { return GetCodec(id(), target()); }
  static const Codec& scalar() { return GetCodec(id(), Target::kScalar); }

  // Without a rotation a codec that rotates has whole blocks.
  static size_t ValuesOf(const Case& c) {
    return scalar().rotates() && !c.rotate ? core::BlocksFor(c.count) * core::kBlockValues : c.count;
  }
  static size_t ResidualsOf(const Case& c) {
    return scalar().rotates() ? core::BlocksFor(c.count) * core::kBlockValues : c.count;
  }

  static void ExpectSame(const Case& c, const std::vector<float>& values, const std::vector<float>& residual) {
    SCOPED_TRACE(Text(c));
    const Encoded expected = EncodeBy(scalar(), c, values, residual);
    const Encoded encoded = EncodeBy(fast(), c, values, residual);
    ASSERT_EQ(encoded.accepted, expected.accepted);
    if (!expected.accepted) return;
    ASSERT_TRUE(encoded.scales == expected.scales);
    ASSERT_TRUE(encoded.codes == expected.codes);
    ASSERT_TRUE(encoded.residual == expected.residual);
    ASSERT_TRUE(encoded.next_residual == expected.next_residual);
    const std::vector<float> before = Values(Kind::kUniform, ValuesOf(c), 3);
    for (std::optional<float> add : {std::optional<float>(), std::optional(0.3f)}) {
      ASSERT_TRUE(DecodeBy(fast(), c, expected, before, add) == DecodeBy(scalar(), c, expected, before, add));
    }
  }

  template <typename Visit>
  static void ForEachForm(Case c, Visit visit) {
    for (Feedback feedback : {Feedback::kNone, Feedback::kInPlace, Feedback::kElsewhere}) {
      for (bool rotate : {false, true}) {
        if (rotate && !scalar().rotates()) continue;
        c.feedback = feedback;
        c.rotate = rotate;
        visit(c);
      }
    }
  }
};

TEST_P(FastTarget, GivesTheScalarBytesResidualsAndValuesForEveryKindOfValue) {
  for (Kind kind : kAllKinds) {
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind));
    ForEachForm({.count = 10'000}, [&](const Case& c) {
      std::vector<float> residual = Values(kind, ResidualsOf(c), 2);
      ExpectSame(c, Values(kind, ValuesOf(c), 1), residual);
    });
  }
}

TEST_P(FastTarget, GivesThemForEverySizeAndAlignment) {
  for (size_t count : {1, 16, 17, 255, 256, 257, 512, 1000, 4095, 4096, 4097, 16 * 4096 + 300}) {
    for (size_t offset : {0, 1, 7, 16}) {
      ForEachForm({.count = count, .offset = offset}, [&](const Case& c) {
        ExpectSame(c, Values(Kind::kBell, ValuesOf(c), count), Values(Kind::kUniform, ResidualsOf(c), 2));
      });
    }
  }
}

// Long runs whose output is only written bypass the caches, where their address allows it: in steps of 64 bytes.
TEST_P(FastTarget, GivesThemForRunsThatBypassTheCaches) {
  constexpr size_t kCount = (5 << 20) / sizeof(float) + 3;
  for (size_t offset = 0; offset < 16; offset += 4) {
    ForEachForm({.count = kCount, .offset = offset}, [&](const Case& c) {
      if (c.feedback == Feedback::kInPlace) return;
      ExpectSame(c, Values(Kind::kUniform, ValuesOf(c), 1), Values(Kind::kUniform, ResidualsOf(c), 2));
    });
  }
}

// A block whose first value is near `threshold`, as many bits above it as `step` says, and whose rms and scale are
// near 1.
std::vector<float> BlockAtThreshold(float threshold, int step, bool by_rms) {
  std::vector<float> block(core::kBlockValues, 1.0f);
  for (size_t i = 1; i < block.size(); i += 2) block[i] = -1;
  block[0] = std::bit_cast<float>(std::bit_cast<uint32_t>(threshold) + static_cast<uint32_t>(step));
  const float others = std::sqrt((9 - threshold * threshold) / 8);  // eight of them restore the sum of squares
  if (by_rms) std::fill_n(block.begin() + 1, 8, others);
  return block;
}

TEST_P(FastTarget, DecidesAsTheScalarCodecDoesAroundEveryThreshold) {
  const bool by_rms = scalar().rotates();
  const std::vector<float> thresholds =
      by_rms ? std::vector<float>{0.2582f, 0.5224f, 0.79955f, 0.9816f, 1.09925f, 1.4371f, 1.8435f, 2.4008f}
             : std::vector<float>{0.5f / 7, 2.5f / 7,  6.5f / 7,  1.5f / 127, 126.5f / 127,
                                  0x1p-7f,  0x1.8p-7f, 0x1.8p-6f, 0.75f};
  constexpr int kSteps = 12;
  for (float threshold : thresholds) {
    std::vector<float> values;
    for (int step = -kSteps; step <= kSteps; ++step) {
      const std::vector<float> block = BlockAtThreshold(threshold, step, by_rms);
      values.insert(values.end(), block.begin(), block.end());
    }
    for (Feedback feedback : {Feedback::kNone, Feedback::kInPlace}) {
      const Case c = {.count = values.size(), .feedback = feedback};
      ExpectSame(c, values, std::vector<float>(ResidualsOf(c)));
    }
  }
}

// Or the test above would not see a threshold that is a bit off.
TEST(Thresholds, AreCrossedByTheBlocksAroundThem) {
  const auto first_decoded = [](CodecId id, float threshold, int step) {
    const std::vector<float> block = BlockAtThreshold(threshold, step, GetCodec(id, Target::kScalar).rotates());
    const Case c = {.count = block.size()};
    const Codec& codec = GetCodec(id, Target::kScalar);
    return DecodeBy(codec, c, EncodeBy(codec, c, block, block), block, std::nullopt)[0];
  };
  for (float threshold : {0.2582f, 0.5224f, 0.79955f, 1.09925f, 1.4371f, 1.8435f, 2.4008f}) {
    EXPECT_NE(first_decoded(CodecId::kRotatedLm4, threshold, -12), first_decoded(CodecId::kRotatedLm4, threshold, 12));
  }
  EXPECT_NE(first_decoded(CodecId::kRotatedLm2, 0.9816f, -12), first_decoded(CodecId::kRotatedLm2, 0.9816f, 12));
  EXPECT_NE(first_decoded(CodecId::kInt4, 2.5f / 7, -12), first_decoded(CodecId::kInt4, 2.5f / 7, 12));
  EXPECT_NE(first_decoded(CodecId::kInt8, 1.5f / 127, -12), first_decoded(CodecId::kInt8, 1.5f / 127, 12));
  EXPECT_NE(first_decoded(CodecId::kE3m0, 0x1p-7f, -12), first_decoded(CodecId::kE3m0, 0x1p-7f, 12));
}

TEST_P(FastTarget, RefusesAndSaturatesTheSameValues) {
  constexpr size_t kCount = 8 * core::kBlockValues + 10;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (float outside : {core::kMaxMagnitude, -core::kMaxMagnitude, kInfinity, -kInfinity, std::nanf("")}) {
    for (size_t at : {size_t{0}, size_t{255}, size_t{1000}, kCount - 1}) {
      for (bool saturate : {false, true}) {
        ForEachForm({.count = kCount, .saturate = saturate}, [&](const Case& c) {
          // Saturated values must be no NaN, which a rotation makes of infinity.
          if (saturate && (std::isnan(outside) || (c.rotate && std::isinf(outside)))) return;
          std::vector<float> values = Values(Kind::kUniform, ValuesOf(c), 1);
          values[at] = outside;
          ExpectSame(c, values, Values(Kind::kUniform, ResidualsOf(c), 2));
          if (!saturate && !c.rotate) {
            EXPECT_FALSE(EncodeBy(fast(), c, values, std::vector<float>(ResidualsOf(c))).accepted)
                << outside << " at " << at;
          }
        });
      }
    }
  }
}

// The sum of a block's magnitudes may pass 2^100 where no value does.
TEST_P(FastTarget, AcceptsABlockOfTheLargestValues) {
  ForEachForm({.count = 600}, [&](const Case& c) {
    std::vector<float> values(ValuesOf(c), c.rotate ? 0x1p93f : std::nextafter(core::kMaxMagnitude, 0.0f));
    for (size_t i = 0; i < values.size(); i += 3) values[i] = -values[i];
    ExpectSame(c, values, std::vector<float>(ResidualsOf(c)));
    EXPECT_TRUE(EncodeBy(fast(), c, values, std::vector<float>(ResidualsOf(c))).accepted);
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, FastTarget,
                         ::testing::Combine(::testing::ValuesIn(kFastCodecs), ::testing::ValuesIn(kFastTargets)),
                         [](const auto& test) {
                           return CodecTestName(std::get<0>(test.param)) + "_" + TargetName(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace causeway::codecs
