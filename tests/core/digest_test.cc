#include "core/digest.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <vector>

#include "absl/strings/escaping.h"
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

}  // namespace
}  // namespace causeway::core
