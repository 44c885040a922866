#include <gtest/gtest.h>

#include <vector>

#include "core/digest.h"

namespace causeway::core {
namespace {

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

}  // namespace
}  // namespace causeway::core
