#include "core/digest.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <vector>

#include "core/layout.h"
#include "core/random.h"

namespace causeway::core {
namespace {

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

}  // namespace
}  // namespace causeway::core
