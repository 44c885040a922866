#include "core/digest.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/escaping.h"
#include "core/aligned.h"
#include "core/bfloat16.h"
#include "core/dtype.h"
#include "core/layout.h"
#include "core/random.h"

namespace causeway::core {
namespace {

using ::testing::ElementsAre;

std::vector<float> RandomUnits(int64_t units) {
  std::vector<float> values(units * kUnitValues);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(UnitInterval(SplitMix64(i)));
  return values;
}

TEST(Digest, OfOneUnitIsItsHashSeededWithTheUnitsIndex) {
  const std::vector<float> values = RandomUnits(1);
  EXPECT_EQ(DigestUnits(values, 7), XXH3_64bits_withSeed(values.data(), 16384, 7));
}

TEST(Digest, OfPartsInAnyOrderAddsUpToTheWhole) {
  const std::vector<float> values = RandomUnits(9);
  const std::span<const float> all(values);
  uint64_t sum = 0;
  for (const auto& [first, units] : std::vector<std::pair<int64_t, int64_t>>{{5, 4}, {0, 2}, {2, 3}}) {
    sum += DigestUnits(all.subspan(first * kUnitValues, units * kUnitValues), 100 + first);
  }
  EXPECT_EQ(sum, DigestUnits(all, 100));
}

TEST(Digest, SwappedUnitsAndTheSignOfZeroAreSeen) {
  std::vector<float> values = RandomUnits(2);
  const uint64_t digest = DigestUnits(values, 0);
  std::vector<float> swapped(values.begin() + kUnitValues, values.end());
  swapped.insert(swapped.end(), values.begin(), values.begin() + kUnitValues);
  EXPECT_NE(DigestUnits(swapped, 0), digest);

  values[17] = 0.0f;
  const uint64_t positive = DigestUnits(values, 0);
  values[17] = -0.0f;
  EXPECT_NE(DigestUnits(values, 0), positive);
}

TEST(Digest, PartOfAUnitIsTheCallersBug) {
  const std::vector<float> values(100);
  EXPECT_DEATH(DigestUnits(values, 0), "CHECK failed");
}

TEST(DigestText, IsSixteenHexadecimalDigits) { EXPECT_EQ(DigestText(0xabc), "0000000000000abc"); }

TEST(KeyedProof, IsHmacSha256) {  // RFC 4231, test case 2
  EXPECT_EQ(absl::BytesToHexString(KeyedProof("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(KeyedProof, OfAnotherSecretIsAnother) {
  const std::string proof = KeyedProof("secret", "text");
  EXPECT_TRUE(SameSecret(proof, KeyedProof("secret", "text")));
  EXPECT_FALSE(SameSecret(proof, KeyedProof("Secret", "text")));
  EXPECT_FALSE(SameSecret(proof, proof.substr(1)));
  EXPECT_FALSE(SameSecret(proof, ""));
}

constexpr uint64_t kSeed = 42;

std::vector<float> Values() {
  std::vector<float> values;
  for (int i = 0; i < 100; ++i) values.push_back(0.25f * static_cast<float>(i) - 7);
  return values;
}

TEST(ThetaDigestTest, IsTheSumOfTheDigestsOfItsParts) {
  const std::vector<float> values = Values();
  const std::span all(values);
  for (const size_t cut : {0, 1, 50, 100}) {
    EXPECT_EQ(ThetaDigest(kSeed, 0, all.first(cut)) + ThetaDigest(kSeed, cut, all.subspan(cut)),
              ThetaDigest(kSeed, 0, all));
  }
}

TEST(ThetaDigestTest, DependsOnEachBitOfAValueAndOnItsPlaceAndTensor) {
  std::vector<float> values = Values();
  const uint64_t before = ThetaDigest(kSeed, 0, values);
  for (int bit = 0; bit < 32; ++bit) {
    const float was = values[3];
    values[3] = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, was) ^ (1u << bit));
    EXPECT_NE(ThetaDigest(kSeed, 0, values), before) << "bit " << bit;
    values[3] = was;
  }
  std::swap(values[3], values[4]);
  EXPECT_NE(ThetaDigest(kSeed, 0, values), before);
  EXPECT_NE(ThetaDigest(kSeed, 1, Values()), before);
  EXPECT_NE(ThetaDigest(ThetaSeed("a"), 0, Values()), ThetaDigest(ThetaSeed("b"), 0, Values()));
}

TEST(ThetaDigestTest, ValuesBeyondTheFirst2To32StillHaveAPlaceOfTheirOwn) {
  const std::vector<float> one = {1.5f};
  EXPECT_NE(ThetaDigest(kSeed, int64_t{1} << 31, one), ThetaDigest(kSeed, (int64_t{1} << 31) + 1, one));
}

std::vector<float> Rounded(DType dtype, std::vector<float> values) {
  std::vector<float> rounded(values.size());
  RoundTo(dtype, values, rounded);
  return rounded;
}

TEST(DType, Bfloat16RoundsToNearestAndTiesToEven) {
  EXPECT_THAT(Rounded(DType::kBfloat16, {1.0f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 1.0f + 0x1p-8f + 0x1p-20f, -0.0f}),
              ElementsAre(1.0f, 1.0f, 1.0f + 0x1p-6f, 1.0f + 0x1p-7f, -0.0f));
}

TEST(DType, Float16RoundsToNearestAlsoBelowItsSmallestNormal) {
  EXPECT_THAT(Rounded(DType::kFloat16,
                      {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 0x1p-24f, 0x1.8p-24f, 0x1p-26f, 65504.0f, 65519.0f}),
              ElementsAre(1.0f, 1.0f + 0x1p-9f, 0x1p-24f, 0x1p-23f, 0.0f, 65504.0f, 65504.0f));
}

TEST(DType, WhatIsBeyondTheLargestBecomesInfiniteAndNanStaysNan) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Rounded(DType::kFloat16, {65520.0f, -1e30f}), ElementsAre(kInfinite, -kInfinite));
  EXPECT_THAT(Rounded(DType::kBfloat16, {3.4e38f, -kInfinite}), ElementsAre(kInfinite, -kInfinite));
  for (DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    EXPECT_TRUE(std::isnan(Rounded(dtype, {std::nanf("")})[0])) << DTypeName(dtype);
  }
}

TEST(DType, NumbersOfATypeStayAsTheyAre) {
  for (DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    std::vector<float> values;
    for (int i = -40; i < 40; ++i) values.push_back(static_cast<float>(i) * 0.37f);
    const std::vector<float> once = Rounded(dtype, values);
    EXPECT_EQ(Rounded(dtype, once), once) << DTypeName(dtype);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("float8"), std::nullopt);
}

TEST(DType, WhatIsStoredLoadsAsItsNearestNumber) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f,     -0.0f,     1.0f,      -3.1415927f, 65504.0f,   0x1p-14f, 0x1.8p-16f,
                                     0x1p-24f, -0x1p-24f, 0x1p-133f, kInfinite,   -kInfinite, 1e30f,    0.1f};
  for (DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    std::vector<std::byte> array(values.size() * BytesOf(dtype) + 1);
    std::byte* const unaligned = array.data() + 1;
    Store(dtype, values, unaligned);
    std::vector<float> loaded(values.size());
    Load(dtype, unaligned, loaded);
    EXPECT_EQ(loaded, Rounded(dtype, values)) << DTypeName(dtype);
    EXPECT_TRUE(std::signbit(loaded[1])) << DTypeName(dtype);
  }
}

TEST(DType, EachFloat16IsStoredAsTheBitsThatItWasLoadedFrom) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float value = 0;
    Load(DType::kFloat16, &half, std::span(&value, 1));
    if (std::isnan(value)) continue;
    uint16_t stored = 0;
    Store(DType::kFloat16, std::span(&value, 1), &stored);
    ASSERT_EQ(stored, half);
  }
}

TEST(AlignedFloats, BeginOnACacheLineWhateverTheirSize) {
  constexpr size_t kLarge = kPagesFromBytes / sizeof(float);
  for (const size_t size : {size_t{1}, size_t{17}, kLarge - 1, kLarge, kLarge + 1, 3 * kLarge}) {
    AlignedFloats values(size, 2.5f);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(values.data()) % kCacheLineBytes, 0u) << size;
    EXPECT_EQ(values.back(), 2.5f) << size;
    values.push_back(1);  // grows: from the heap into pages, too
    EXPECT_EQ(values[size - 1], 2.5f) << size;
  }
}

// By the definition: of the two bfloat16 around a finite value the nearer one, of two as near the even one. The step
// after the largest one stands for infinity.
uint16_t Nearest(float value) {
  const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);  // towards zero
  const auto worth = [](uint16_t bits) {
    const bool infinite = (bits & 0x7fff) == 0x7f80;
    return infinite ? 0x1p128 : std::fabs(static_cast<double>(FromBfloat16(bits)));
  };
  const double to_below = std::fabs(value) - worth(below), to_above = worth(below + 1) - std::fabs(value);
  return to_below < to_above || (to_below == to_above && below % 2 == 0) ? below : below + 1;
}

TEST(Bfloat16, EachValueBecomesTheNearestAndTiesGoToTheEvenOne) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(ToBfloat16(value), Nearest(value)) << value;
    }
  }
}

TEST(Bfloat16, InfinityStaysAndNanBecomesAQuietOneOfItsSign) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToBfloat16(kInfinite), 0x7f80);
  EXPECT_EQ(ToBfloat16(-kInfinite), 0xff80);
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    EXPECT_EQ(ToBfloat16(std::bit_cast<float>(nan)), (nan >> 16) | 0x0040);
    EXPECT_EQ(ToBfloat16(std::bit_cast<float>(nan | 0x80000000u)), (nan >> 16) | 0x8040);
  }
}

TEST(Bfloat16, StochasticallyTheFurtherOfTheTwoAroundIsTakenAsOftenAsTheValueIsNearIt) {
  constexpr int kValues = 20'000;
  for (const double nearness : {0.02, 0.25, 0.5, 0.9}) {
    int further = 0;
    for (int i = 0; i < kValues; ++i) {
      const uint64_t draw = HashCombine(7, i);
      const auto lower = static_cast<uint32_t>(nearness * 0x10000) + draw % 256;
      const uint32_t bits = (draw >> 32 & 0xbfff0000u) | lower;
      const auto rounded = std::bit_cast<uint32_t>(RoundStochastically(std::bit_cast<float>(bits)));
      ASSERT_TRUE(rounded == bits - lower || rounded == bits - lower + 0x10000) << bits;
      further += rounded > bits ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(further) / kValues, nearness, 0.015);
  }
}

TEST(Bfloat16, StochasticallyTheSameValueGivesTheSameBits) {  // those of tests/python/test_torch_device.py, too
  EXPECT_EQ(RoundStochastically(0.1f), 0.099609375f);
  EXPECT_EQ(RoundStochastically(0.2f), 0.2001953125f);
  EXPECT_EQ(RoundStochastically(0.3f), 0.298828125f);
  EXPECT_EQ(RoundStochastically(-0.7f), -0.69921875f);
  EXPECT_EQ(RoundStochastically(3.14159274f), 3.140625f);
}

TEST(Bfloat16, StochasticallyABfloat16StaysAndNanToo) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    const auto value = std::bit_cast<float>(upper << 16);
    ASSERT_EQ(std::bit_cast<uint32_t>(RoundStochastically(value)), upper << 16);
    const auto beside = std::bit_cast<float>(upper << 16 | 0xffffu);
    ASSERT_EQ(std::isnan(RoundStochastically(beside)), std::isnan(beside));
  }
}

TEST(Bfloat16, BitsBecomeTheFloatThatTheyAreAndComeBack) {
  EXPECT_EQ(FromBfloat16(0x3f80), 1.0f);
  EXPECT_EQ(FromBfloat16(0x8001), -0x1p-133f);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = FromBfloat16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(ToBfloat16(value), bits);
  }
}

TEST(Bfloat16, RoundToGivesTheSameBits) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    const auto value = std::bit_cast<float>(upper << 16 | (upper * 0x9e37u & 0xffffu));
    float rounded = 0;
    RoundTo(DType::kBfloat16, {&value, 1}, {&rounded, 1});
    ASSERT_EQ(std::bit_cast<uint32_t>(rounded) >> 16, ToBfloat16(value)) << value;
  }
}

}  // namespace
}  // namespace causeway::core
