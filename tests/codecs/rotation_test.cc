#include "codecs/rotation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "core/random.h"
#include "tests/codecs/by_specification.h"
#include "tests/codecs/distributions.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

constexpr Rotation kRotation = {0x0123456789abcdef, 5};

std::vector<float> Rotated(const Rotation& rotation, std::vector<float> values) {
  Rotate(rotation, values);
  return values;
}

TEST(Rotation, GivesTheBitsOfTheDocumentedStages) {
  const std::vector<float> values = UniformValues(16 * 256, 1);
  std::vector<float> rotated = Rotated(kRotation, values);
  EXPECT_EQ(Bits(rotated), Bits(RotatedBySpecification(kRotation, values)));
  const std::vector<float> back = RotatedBackBySpecification(kRotation, rotated);
  Unrotate(kRotation, rotated);
  EXPECT_EQ(Bits(rotated), Bits(back));
}

// y_i = 1/16 Σ_j (−1)^popcount(i & j) s_j x_j, in double.
TEST(Rotation, IsTheHadamardMatrixAfterTheSigns) {
  const std::vector<float> values = UniformValues(2 * 256, 2);
  const std::vector<float> rotated = Rotated(kRotation, values);
  for (size_t block = 0; block < 2; ++block) {
    const BlockSigns signs = SignsOf(kRotation.seed, kRotation.first_block + static_cast<int64_t>(block));
    for (unsigned i = 0; i < 256; ++i) {
      double sum = 0;
      for (unsigned j = 0; j < 256; ++j) {
        const bool minus = std::popcount(i & j) % 2 != static_cast<int>(signs.words[j / 64] >> j % 64 & 1);
        sum += (minus ? -1.0 : 1.0) * values[256 * block + j];
      }
      ASSERT_NEAR(rotated[256 * block + i], sum / 16, 1e-6) << "block " << block << " coefficient " << i;
    }
  }
}

TEST(Rotation, BackIsNearlyWhatItWas) {
  for (float magnitude : {1.0f, 1e-30f, 1e25f}) {
    std::vector<float> values = UniformValues(64 * 256, 3);
    for (float& value : values) value *= magnitude;
    std::vector<float> back = Rotated(kRotation, values);
    Unrotate(kRotation, back);
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(back[i], values[i], 0x1p-20 * magnitude) << i;
  }
}

TEST(Rotation, KeepsTheNormOfEachBlock) {
  const std::vector<float> values = ValuesOf(Shape::kStudentT3, 64 * 256, 4);
  const std::vector<float> rotated = Rotated(kRotation, values);
  for (size_t begin = 0; begin < values.size(); begin += 256) {
    const double before = Norm(std::span(values).subspan(begin, 256));
    EXPECT_NEAR(Norm(std::span(rotated).subspan(begin, 256)), before, 1e-5 * before);
  }
}

// Its purpose: the one large value is in all 256, at a sixteenth.
TEST(Rotation, SpreadsAnOutlierOverItsBlock) {
  std::vector<float> values(256, 0.0f);
  values[100] = 16.0f;
  for (float coefficient : Rotated(kRotation, values)) EXPECT_EQ(std::abs(coefficient), 1.0f);
}

TEST(Rotation, LargestCoefficientIsBelow16TimesTheLargestValue) {
  std::vector<float> values(256, 0x1.fffffep93f);
  const BlockSigns signs = SignsOf(kRotation.seed, kRotation.first_block);
  for (size_t j = 0; j < 256; ++j) values[j] = (signs.words[j / 64] >> j % 64 & 1) != 0 ? -values[j] : values[j];
  EXPECT_EQ(Rotated(kRotation, values)[0], 0x1.fffffep97f);  // all in the first one: the worst case
}

TEST(Rotation, SignsAreTheOutputsOfSplitMixCountedByBlocks) {
  // The first outputs for seed 1234567, as Rosetta Code lists them ("Pseudo-random numbers/Splitmix64").
  EXPECT_EQ(SignsOf(1234567, 0).words[0], 6457827717110365317u);
  EXPECT_EQ(SignsOf(1234567, 0).words[1], 3203168211198807973u);
  EXPECT_EQ(SignsOf(1234567, 0).words[2], 9817491932198370423u);
  EXPECT_EQ(SignsOf(1234567, 0).words[3], 4593380528125082431u);
  EXPECT_EQ(SignsOf(1234567, 1).words[0], 16408922859458223821u);
}

TEST(Rotation, SignsAreHalfMinusAndDifferBetweenBlocksAndSeeds) {
  int64_t minus = 0;
  for (int64_t block = 0; block < 1000; ++block) {
    for (uint64_t word : SignsOf(7, block).words) minus += std::popcount(word);
    EXPECT_NE(SignsOf(7, block).words[0], SignsOf(7, block + 1).words[0]);
    EXPECT_NE(SignsOf(7, block).words[0], SignsOf(8, block).words[0]);
  }
  EXPECT_NEAR(static_cast<double>(minus), 128'000, 5 * 253);  // five standard deviations
}

TEST(Rotation, IsTheSameWhereverTheBlocksAreSplit) {
  const std::vector<float> values = UniformValues(48 * 256, 5);
  const std::vector<float> whole = Rotated({9, 100}, values);
  for (size_t blocks : {1, 16, 31}) {
    std::vector<float> parts = values;
    Rotate({9, 100}, std::span(parts).first(256 * blocks));
    Rotate({9, 100 + static_cast<int64_t>(blocks)}, std::span(parts).subspan(256 * blocks));
    EXPECT_EQ(Bits(parts), Bits(whole)) << blocks;
  }
}

TEST(Rotation, PartOfABlockIsTheCallersBug) {
  std::vector<float> values(257);
  EXPECT_DEATH(Rotate(kRotation, values), "CHECK failed");
}

TEST(RotationSeed, ComesFromRunAndFragmentAlone) {
  EXPECT_EQ(RotationSeed(3, 4), core::HashCombine(3, uint64_t{4}));
  EXPECT_NE(RotationSeed(3, 4), RotationSeed(3, 5));
  EXPECT_NE(RotationSeed(3, 4), RotationSeed(4, 4));
}

}  // namespace
}  // namespace causeway::codecs
