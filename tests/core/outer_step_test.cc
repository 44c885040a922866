#include "core/outer_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/bfloat16.h"
#include "core/buffer_pool.h"
#include "core/dtype.h"
#include "core/random.h"
#include "core/stream_priority.h"

namespace causeway::core {
namespace {

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

std::vector<float> Random(size_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = HashCombine(seed, i);
    values[i] = static_cast<float>((UnitInterval(bits) - 0.5) * std::exp2(static_cast<double>(bits % 40) - 20));
  }
  return values;
}

// All values are dyadic, so that every line can be checked by hand and nothing is rounded.
TEST(OuterStep, HandComputedStepOfNesterov) {
  const OuterParameters outer = {.lr = 0.5f, .momentum = 0.25f};
  std::vector<float> momentum = {8.0f}, anchor = {1.0f};
  OuterStep(outer, std::vector<float>{2.0f}, momentum, anchor);
  EXPECT_EQ(momentum[0], 4.0f);  // 0.25 · 8 + 2
  EXPECT_EQ(anchor[0], -0.5f);   // s = 0.25 · 4 + 2 = 3;  1 − 0.5 · 3
  OuterStep(outer, std::vector<float>{-1.0f}, momentum, anchor);
  EXPECT_EQ(momentum[0], 0.0f);  // 0.25 · 4 − 1
  EXPECT_EQ(anchor[0], 0.0f);    // s = −1;  −0.5 + 0.5
}

TEST(OuterStep, GainMultipliesTheStepAndNotTheMomentum) {
  const OuterParameters outer = {.lr = 0.5f, .momentum = 0.25f, .gain = 2.0f};
  std::vector<float> momentum = {8.0f}, anchor = {1.0f}, gradient = {2.0f};
  OuterStep(outer, gradient, momentum, anchor);
  EXPECT_EQ(momentum[0], 4.0f);  // 0.25 · 8 + 2
  EXPECT_EQ(anchor[0], -2.0f);   // s = 2 · (0.25 · 4 + 2) = 6;  1 − 0.5 · 6
  OuterDirection(outer, momentum, gradient);
  EXPECT_EQ(gradient[0], 6.0f);
}

TEST(OuterStep, MomentumZeroAndRateOneSubtractsTheGradient) {
  std::vector<float> momentum = {3.0f}, anchor = {1.0f};
  OuterStep({.lr = 1.0f, .momentum = 0.0f}, std::vector<float>{0.25f}, momentum, anchor);
  EXPECT_EQ(momentum[0], 0.25f);
  EXPECT_EQ(anchor[0], 0.75f);
}

// (1 + 2^-12)² = 1 + 2^-11 + 2^-24: only a fused step keeps the last term when 1 + 2^-11 is taken off again.
TEST(OuterStep, RoundsOnceWhereFmaIsNamed) {
  const float near_one = 1.0f + 0x1p-12f;
  std::vector<float> momentum = {near_one}, anchor = {0.0f};
  OuterStep({.lr = 1.0f, .momentum = near_one}, std::vector<float>{-(1.0f + 0x1p-11f)}, momentum, anchor);
  EXPECT_EQ(momentum[0], 0x1p-24f);
}

TEST(Rebase, MovesLocalValuesAsFarAsTheAnchorMoved) {
  const OuterParameters outer = {.lr = 0.5f, .momentum = 0.25f};
  std::vector<float> momentum = {8.0f}, anchor = {1.0f}, local = {5.0f};
  std::vector<float> gradient = {2.0f};
  OuterStep(outer, gradient, momentum, anchor);
  OuterDirection(outer, momentum, gradient);
  Rebase(outer.lr, gradient, local);
  EXPECT_EQ(local[0], 3.5f);  // 5 − 0.5 · 3, so W − θ is still −4
}

TEST(MixAnchor, WeighsTheLocalValueWithAlpha) {
  const std::vector<float> anchor = {4.0f, -0.0f};
  std::vector<float> quarter = {8.0f, 1.0f}, none = {8.0f, 1.0f}, all = {8.0f, 1.0f};
  MixAnchor(0.25f, anchor, quarter);
  MixAnchor(0.0f, anchor, none);
  MixAnchor(1.0f, anchor, all);
  EXPECT_EQ(quarter, (std::vector<float>{5.0f, 0.25f}));  // 0.25 · 8 + 0.75 · 4
  EXPECT_EQ(Bits(none), Bits(anchor));                    // copied, the sign of zero too
  EXPECT_EQ(all, (std::vector<float>{8.0f, 1.0f}));
}

TEST(RoundMix, LeavesThetaThatIsTheAnchorRoundedAndRoundsTheRestStochastically) {
  constexpr int kValues = 4000;
  constexpr float kStep = 0x1p-7f;  // between numbers of bfloat16 above 1
  std::vector<float> anchor;
  for (int i = 0; i < kValues; ++i) anchor.push_back(1.0f + 0.4f * static_cast<float>(i) / kValues * kStep);
  for (const float alpha : {0.25f, 0.5f, 0.75f}) {
    const std::vector<float> reached(kValues, 1.0f);
    std::vector<float> mixed = reached;
    MixAnchor(alpha, anchor, mixed);
    RoundMix(anchor, reached, mixed);
    EXPECT_EQ(mixed, reached) << alpha;

    const std::vector<float> local(kValues, 1.0f + 2 * kStep);
    mixed = local;
    MixAnchor(alpha, anchor, mixed);
    const double expected = std::accumulate(mixed.begin(), mixed.end(), 0.0) / kValues;
    RoundMix(anchor, local, mixed);
    EXPECT_NEAR(std::accumulate(mixed.begin(), mixed.end(), 0.0) / kValues, expected, 0.03 * kStep) << alpha;
    std::vector<float> rounded(kValues);
    RoundTo(DType::kBfloat16, mixed, rounded);
    EXPECT_EQ(mixed, rounded) << alpha;
  }
}

TEST(OuterGradient, IsPositiveInTheDirectionToSubtract) {
  std::vector<float> gradient(2);
  OuterGradient(std::vector<float>{1.0f, -2.0f}, std::vector<float>{0.25f, 1.0f}, gradient);
  EXPECT_EQ(gradient, (std::vector<float>{0.75f, -3.0f}));
}

// The loops are compiled for several instruction sets; a plain loop here must give the bits of whichever was chosen.
// Sizes around vector widths exercise the remainders.
class MultiversionedLoops : public ::testing::TestWithParam<size_t> {};

TEST_P(MultiversionedLoops, EqualAPlainLoopBitForBit) {
  const size_t n = GetParam();
  const OuterParameters outer = {.lr = 0.7f, .momentum = 0.9f};
  std::vector<float> gradient = Random(n, 1);
  std::vector<float> momentum = Random(n, 2), anchor = Random(n, 3), local = Random(n, 4), mixed = Random(n, 5);
  std::vector<float> expect_momentum = momentum, expect_anchor = anchor, expect_local = local, expect_mixed = mixed;
  std::vector<float> difference(n), expect_difference(n), expect_rounded(n);
  for (size_t i = 0; i < n; ++i) {
    volatile float v = fmaf(0.9f, expect_momentum[i], gradient[i]);
    volatile float s = fmaf(0.9f, v, gradient[i]);
    expect_momentum[i] = v;
    expect_anchor[i] = fmaf(-0.7f, s, expect_anchor[i]);
    expect_local[i] = fmaf(-0.7f, s, expect_local[i]);
    volatile float share = (1.0f - 0.3f) * expect_anchor[i];
    expect_mixed[i] = fmaf(0.3f, expect_mixed[i], share);
    expect_difference[i] = expect_anchor[i] - expect_local[i];
    expect_rounded[i] = RoundStochastically(expect_mixed[i]);
  }
  OuterStep(outer, gradient, momentum, anchor);
  OuterDirection(outer, momentum, gradient);
  Rebase(outer.lr, gradient, local);
  MixAnchor(0.3f, anchor, mixed);
  OuterGradient(anchor, local, difference);
  EXPECT_EQ(Bits(momentum), Bits(expect_momentum));
  EXPECT_EQ(Bits(anchor), Bits(expect_anchor));
  EXPECT_EQ(Bits(local), Bits(expect_local));
  EXPECT_EQ(Bits(mixed), Bits(expect_mixed));
  EXPECT_EQ(Bits(difference), Bits(expect_difference));
  RoundMix(anchor, local, mixed);
  EXPECT_EQ(Bits(mixed), Bits(expect_rounded));
}

INSTANTIATE_TEST_SUITE_P(Sizes, MultiversionedLoops, ::testing::Values(1, 3, 7, 8, 15, 16, 17, 31, 33, 4096, 10'007));

TEST(StreamPriority, GradientsComeBeforeTheStepAndTheStepBeforeSyncs) {
  EXPECT_EQ(PriorityOf(StreamPurpose::kGradients, 0, -5), -5);  // the lower number is the greater priority
  EXPECT_EQ(PriorityOf(StreamPurpose::kStep, 0, -5), -3);
  EXPECT_EQ(PriorityOf(StreamPurpose::kSync, 0, -5), 0);
  EXPECT_EQ(PriorityOf(StreamPurpose::kStep, 0, -2), -1);
}

TEST(StreamPriority, OfTwoSyncsHaveTheLeastAlone) {
  EXPECT_EQ(PriorityOf(StreamPurpose::kGradients, 0, -1), -1);
  EXPECT_EQ(PriorityOf(StreamPurpose::kStep, 0, -1), -1);
  EXPECT_EQ(PriorityOf(StreamPurpose::kSync, 0, -1), 0);
}

TEST(StreamPriority, OfOneAllHaveIt) {
  for (const StreamPurpose purpose : {StreamPurpose::kGradients, StreamPurpose::kStep, StreamPurpose::kSync}) {
    EXPECT_EQ(PriorityOf(purpose, 0, 0), 0);
  }
}

TEST(BufferPool, WhatIsGivenBackIsLentAgain) {
  BufferPool pool;
  const float* first = nullptr;
  {
    const Buffer buffer = pool.Take(4096);
    EXPECT_EQ(buffer.values().size(), 4096u);
    first = buffer.values().data();
    EXPECT_EQ(pool.free_values(), 0u);
  }
  EXPECT_EQ(pool.free_values(), 4096u);
  const Buffer again = pool.Take(4096);
  EXPECT_EQ(again.values().data(), first);
  EXPECT_EQ(pool.free_values(), 0u);
}

TEST(BufferPool, AnArrayThatIsALittleLargerServesWithTheSizeThatWasAskedFor) {
  BufferPool pool;
  const float* larger = nullptr;
  {
    const Buffer buffer = pool.Take(9 * 4096);
    larger = buffer.values().data();
  }
  const Buffer smaller = pool.Take(8 * 4096);
  EXPECT_EQ(smaller.values().data(), larger);
  EXPECT_EQ(smaller.values().size(), size_t{8 * 4096});
}

TEST(BufferPool, TheSmallestOfThoseThatFitIsLent) {
  BufferPool pool;
  const float* close = nullptr;
  {
    const Buffer large = pool.Take(9000), small = pool.Take(8192);
    close = small.values().data();
  }
  EXPECT_EQ(pool.Take(8192).values().data(), close);
}

TEST(BufferPool, AMuchLargerArrayIsNotLentForASmallOneAndMakesRoomForIt) {
  BufferPool pool;
  pool.Take(100 * 4096).Reset();
  ASSERT_EQ(pool.free_values(), size_t{100 * 4096});
  Buffer small = pool.Take(4096);
  EXPECT_EQ(pool.free_values(), 0u);  // the large one is gone
  small.Reset();
  EXPECT_EQ(pool.free_values(), 4096u);  // and was not lent in its place
}

TEST(BufferPool, AnArrayThatIsTooSmallIsReplaced) {
  BufferPool pool;
  pool.Take(4096).Reset();
  Buffer large = pool.Take(8192);
  EXPECT_EQ(large.values().size(), 8192u);
  std::ranges::fill(large.values(), 1.0f);
  large.Reset();
  EXPECT_EQ(pool.free_values(), 8192u);
}

TEST(BufferPool, TrimFreesWhatIsNotLentAndLeavesWhatIs) {
  BufferPool pool;
  Buffer lent = pool.Take(4096);
  std::ranges::fill(lent.values(), 3.0f);
  pool.Take(8192).Reset();
  ASSERT_EQ(pool.free_values(), 8192u);
  pool.Trim();
  EXPECT_EQ(pool.free_values(), 0u);
  EXPECT_EQ(std::ranges::count(lent.values(), 3.0f), 4096);
  lent.Reset();
  EXPECT_EQ(pool.free_values(), 4096u);
}

TEST(BufferPool, AMovedBufferIsGivenBackOnce) {
  BufferPool pool;
  {
    Buffer first = pool.Take(4096);
    Buffer second = std::move(first);
    EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_FALSE(second.empty());
    Buffer other = pool.Take(8192);
    other = std::move(second);  // gives back what it held
    EXPECT_EQ(pool.free_values(), 8192u);
    EXPECT_EQ(other.values().size(), 4096u);
  }
  EXPECT_EQ(pool.free_values(), size_t{4096 + 8192});
}

// Fragments of several sizes, of which at most three are in flight.
TEST(BufferPool, ManyRoundsOfFragmentsOfDifferentSizesKeepNoMoreArraysThanAreInFlight) {
  const std::vector<size_t> sizes = {4096, 40 * 4096, 7 * 4096, 41 * 4096, 100 * 4096, 12 * 4096, 99 * 4096};
  const size_t largest = *std::ranges::max_element(sizes);
  BufferPool pool;
  std::vector<Buffer> in_flight(3);
  for (size_t take = 0; take < 5000; ++take) {
    Buffer& slot = in_flight[take % in_flight.size()];
    slot.Reset();
    slot = pool.Take(sizes[(take * take + take / 3) % sizes.size()]);
    size_t lent = 0;
    for (const Buffer& buffer : in_flight) lent += buffer.values().size();
    ASSERT_LE(pool.free_values() + lent, in_flight.size() * largest) << "after " << take;
  }
  for (Buffer& buffer : in_flight) buffer.Reset();
  EXPECT_LE(pool.free_values(), in_flight.size() * largest);
}

}  // namespace
}  // namespace causeway::core
