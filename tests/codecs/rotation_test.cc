#include "codecs/rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "codecs/chunk.h"
#include "codecs/scale.h"
#include "codecs/topk_select.h"
#include "core/bfloat16.h"
#include "core/codec_id.h"
#include "core/random.h"
#include "tests/codecs/by_specification.h"
#include "tests/codecs/distributions.h"
#include "tests/codecs/encoded.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

constexpr Rotation kAnyRotation = {0x0123456789abcdef, 5};

std::vector<float> Rotated(const Rotation& rotation, std::vector<float> values) {
  Rotate(rotation, values);
  return values;
}

TEST(Rotation, GivesTheBitsOfTheDocumentedStages) {
  const std::vector<float> values = UniformValues(16 * 256, 1);
  std::vector<float> rotated = Rotated(kAnyRotation, values);
  EXPECT_EQ(Bits(rotated), Bits(RotatedBySpecification(kAnyRotation, values)));
  const std::vector<float> back = RotatedBackBySpecification(kAnyRotation, rotated);
  Unrotate(kAnyRotation, rotated);
  EXPECT_EQ(Bits(rotated), Bits(back));
}

// y_i = 1/16 Σ_j (−1)^popcount(i & j) s_j x_j, in double.
TEST(Rotation, IsTheHadamardMatrixAfterTheSigns) {
  const std::vector<float> values = UniformValues(2 * 256, 2);
  const std::vector<float> rotated = Rotated(kAnyRotation, values);
  for (size_t block = 0; block < 2; ++block) {
    const BlockSigns signs = SignsOf(kAnyRotation.seed, kAnyRotation.first_block + static_cast<int64_t>(block));
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
    std::vector<float> back = Rotated(kAnyRotation, values);
    Unrotate(kAnyRotation, back);
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(back[i], values[i], 0x1p-20 * magnitude) << i;
  }
}

TEST(Rotation, KeepsTheNormOfEachBlock) {
  const std::vector<float> values = ValuesOf(Shape::kStudentT3, 64 * 256, 4);
  const std::vector<float> rotated = Rotated(kAnyRotation, values);
  for (size_t begin = 0; begin < values.size(); begin += 256) {
    const double before = Norm(std::span(values).subspan(begin, 256));
    EXPECT_NEAR(Norm(std::span(rotated).subspan(begin, 256)), before, 1e-5 * before);
  }
}

// Its purpose: the one large value is in all 256, at a sixteenth.
TEST(Rotation, SpreadsAnOutlierOverItsBlock) {
  std::vector<float> values(256, 0.0f);
  values[100] = 16.0f;
  for (float coefficient : Rotated(kAnyRotation, values)) EXPECT_EQ(std::abs(coefficient), 1.0f);
}

TEST(Rotation, LargestCoefficientIsBelow16TimesTheLargestValue) {
  std::vector<float> values(256, 0x1.fffffep93f);
  const BlockSigns signs = SignsOf(kAnyRotation.seed, kAnyRotation.first_block);
  for (size_t j = 0; j < 256; ++j) values[j] = (signs.words[j / 64] >> j % 64 & 1) != 0 ? -values[j] : values[j];
  EXPECT_EQ(Rotated(kAnyRotation, values)[0], 0x1.fffffep97f);  // all in the first one: the worst case
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
  EXPECT_DEATH(Rotate(kAnyRotation, values), "CHECK failed");
}

TEST(RotationSeed, ComesFromRunAndFragmentAlone) {
  EXPECT_EQ(RotationSeed(3, 4), core::HashCombine(3, uint64_t{4}));
  EXPECT_NE(RotationSeed(3, 4), RotationSeed(3, 5));
  EXPECT_NE(RotationSeed(3, 4), RotationSeed(4, 4));
}

TEST(Scale, Bfloat16BelowTheLimitHasTheBitsOfCore) {
  for (const float limit : {core::kMaxMagnitude, 1.0f, 0x1p-120f}) {
    for (uint32_t upper = 0; upper < 0x10000; ++upper) {
      for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        const auto value = std::bit_cast<float>(upper << 16 | lower);
        if (!std::isfinite(value)) continue;
        const uint16_t nearest = core::ToBfloat16(value);
        const uint16_t largest = core::ToBfloat16(std::copysign(limit * (1 - 0x1p-8f), value));
        const bool below = std::fabs(core::FromBfloat16(nearest)) < limit;
        ASSERT_EQ(ToBfloat16(value, limit), below ? nearest : largest) << value << " below " << limit;
      }
    }
  }
}

// Which values topk keeps: the fast choice against the reference.

std::vector<float> Filled(int64_t count, auto value) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = value(i);
  return values;
}

TEST(TopkSelect, ByGroupsChoosesWhatTheReferenceChooses) {
  const std::vector<float> spread = UniformValues(4096, 1);
  const std::vector<std::vector<float>> units = {
      spread,
      Filled(4096, [&](int64_t i) { return std::round(4 * spread[i]); }),  // ties everywhere
      Filled(4096, [](int64_t) { return -1.0f; }),
      Filled(4096, [](int64_t) { return -0.0f; }),
      Filled(4096,
             [&](int64_t i) { return std::ldexp(spread[i], static_cast<int>(i % 250) - 149); }),  // denormals, too
      Filled(4096, [](int64_t i) { return i % 256 == 3 ? static_cast<float>(i) : 0.0f; }),        // all in one group
      Filled(4096, [](int64_t i) { return i < 700 ? static_cast<float>(i) : 0.0f; }),
      Filled(4095, [&](int64_t i) { return spread[i]; }),
      Filled(300, [&](int64_t i) { return spread[i]; }),
      Filled(1, [](int64_t) { return 2.0f; }),
      {}};
  for (const core::CodecId id : core::kTopkCodecs) {
    const int entries = core::TopkEntries(id);
    for (size_t unit = 0; unit < units.size(); ++unit) {
      EXPECT_EQ(SelectByGroups(units[unit], entries), SelectReference(units[unit], entries))
          << entries << " of unit " << unit;
    }
  }
}

// Every size, with tails of every length, and memory that begins anywhere.

std::vector<size_t> Sizes() {
  std::vector<size_t> sizes;
  for (size_t size = 1; size <= 600; ++size) sizes.push_back(size);
  for (size_t around : {768, 1024, 2048, 3840, 4096, 4352, 8192, 8448}) {
    for (size_t size = around - 2; size <= around + 2; ++size) sizes.push_back(size);
  }
  for (size_t prime : {601, 1009, 2003, 3001, 4001, 4099, 5003, 6007, 7001, 8009, 9001, 9973, 10'000}) {
    sizes.push_back(prime);
  }
  return sizes;
}

class SizesOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(SizesOf, ComeBackFromAChunkAsSpecified) {
  for (size_t size : Sizes()) {
    const std::vector<float> values = UniformValues(size, size);
    const ChunkSpan span = {GetParam(), 2, static_cast<int64_t>(size), RotationOf(GetParam()) ? kRotation.seed : 0};
    const auto bytes = EncodeChunk(span, values, {});  // unit 2 is block 32, as in kRotation
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const auto view = ChunkView::Parse(*bytes);
    ASSERT_TRUE(view.ok()) << view.status();
    std::vector<float> decoded(size);
    view->Decode(2, decoded);
    const Specified specified = BySpecification(GetParam(), InDomain(GetParam(), values), 1);
    ASSERT_EQ(Bits(decoded), Bits(OutOfDomain(GetParam(), specified.decoded, size))) << size << " values";
  }
}

TEST_P(SizesOf, WithFeedbackKeepWhatIsDropped) {
  for (size_t size : Sizes()) {
    SCOPED_TRACE(size);
    ExpectAsSpecified(GetParam(), UniformValues(size, 1), 1.25f, 0.9f,
                      UniformValues(DomainValues(GetParam(), size), 2));
    if (HasFatalFailure()) return;
  }
}

// Memory that begins `offset` items after a cache line, with others around it that must stay untouched.
template <typename T>
class Guarded {
 public:
  Guarded(size_t count, size_t offset)
      : at_(kGuard + offset), count_(count), items_(at_ + count + kGuard, kUntouched) {}
  std::span<T> items() { return std::span(items_).subspan(at_, count_); }
  bool untouched() const {
    const auto good = [](T item) { return item == kUntouched; };
    return std::all_of(items_.begin(), items_.begin() + at_, good) &&
           std::all_of(items_.begin() + at_ + count_, items_.end(), good);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr T kUntouched = 90;
  const size_t at_, count_;
  std::vector<T> items_;
};

// Values, residuals, scales, codes and decoded values at offsets of their own.
void ExpectSameAnywhere(const Codec& codec, CodecId id, size_t count, size_t offset) {
  const size_t in_domain = DomainValues(id, count);
  const std::vector<float> x = UniformValues(count, 3), e = UniformValues(in_domain, 4);
  const Encoded expected = EncodeWith(codec, x, 1.25f, 0.5f, e);
  Guarded<float> values(count, offset), residual(in_domain, (offset + 5) % 16), decoded(count, (offset + 11) % 16);
  Guarded<uint8_t> scales(expected.scales.size(), 2 * offset + 1), codes(expected.codes.size(), 3 * offset + 1);
  std::ranges::copy(x, values.items().begin());
  std::ranges::copy(e, residual.items().begin());
  ASSERT_TRUE(codec.Encode({.values = values.items().data(),
                            .count = static_cast<int64_t>(count),
                            .rotation = RotationOf(id),
                            .beta = 0.5f,
                            .residual = residual.items().data(),
                            .next_residual = residual.items().data(),
                            .gain = 1.25f,
                            .scales = scales.items().data(),
                            .codes = codes.items().data()}));
  ASSERT_TRUE(std::ranges::equal(scales.items(), expected.scales));
  ASSERT_TRUE(std::ranges::equal(codes.items(), expected.codes));
  ASSERT_EQ(Bits(residual.items()), Bits(expected.residual));
  DecodeJob job = {.scales = scales.items().data(),
                   .codes = codes.items().data(),
                   .rotation = RotationOf(id),
                   .values = decoded.items().data(),
                   .count = static_cast<int64_t>(count)};
  codec.Decode(job);
  const std::vector<float> plain = Decode(id, expected, count);
  ASSERT_EQ(Bits(decoded.items()), Bits(plain));
  job.add = 2.0f;
  codec.Decode(job);
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(decoded.items()[i], std::fma(2.0f, plain[i], plain[i])) << i;
  EXPECT_TRUE(values.untouched() && residual.untouched() && decoded.untouched());
  EXPECT_TRUE(scales.untouched() && codes.untouched());
}

TEST_P(SizesOf, MemoryMayBeginAnywhereAndNothingAroundItIsTouched) {
  for (Target target : kAllTargets) {
    if (!Supported(target)) continue;
    for (size_t count : {1, 17, 255, 256, 300, 2 * 256 + 16, 4096 + 17, 2 * 4096}) {
      for (size_t offset = 0; offset < 16; ++offset) {
        SCOPED_TRACE(testing::Message() << TargetName(target) << ", " << count << " values, offset " << offset);
        ExpectSameAnywhere(GetCodec(GetParam(), target), GetParam(), count, offset);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, SizesOf, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

}  // namespace
}  // namespace causeway::codecs
