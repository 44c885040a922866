#include "replica/host_store.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <memory>
#include <numeric>

namespace causeway::replica {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kPadding = -7;  // what an array holds where the store is to leave it alone

// Three tensors of 2, 1 and 3 units, none of which ends with a unit; with a bus schedule and without.
class HostStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  HostStoreTest() {
    for (std::vector<float>* tensor : {&a_, &b_, &c_}) {
      for (float& value : *tensor) value = next_++;
    }
    store_ = std::make_unique<HostStore>(std::vector<std::span<float>>{a_, b_, c_}, GetParam() ? &bus_ : nullptr);
  }

  std::vector<float> Read(const UnitRanges& ranges) {
    std::vector<float> staging(PaddedValues(ranges), kPadding);
    EXPECT_TRUE(store_->Read(ranges, staging).ok());
    return staging;
  }

  static size_t PaddedValues(const UnitRanges& ranges) {
    size_t units = 0;
    for (const UnitRange& range : ranges) units += range.count;
    return units * core::kUnitValues;
  }

  // `values` in padded layout.
  static void Append(std::vector<float>& padded, std::span<const float> values) {
    padded.insert(padded.end(), values.begin(), values.end());
    padded.resize(core::UnitsFor(std::ssize(padded)) * core::kUnitValues, kPadding);
  }

  // The trainer changes θ: not before what was announced is copied.
  void Train(float by) {
    bus_.BeginUpdate();
    bus_.AwaitCopied({0, std::ssize(a_) + std::ssize(b_) + std::ssize(c_)});
    for (std::vector<float>* tensor : {&a_, &b_, &c_}) {
      for (float& value : *tensor) value += by;
    }
    bus_.EndUpdate();
  }

  float next_ = 0;
  std::vector<float> a_ = std::vector<float>(5000), b_ = std::vector<float>(64), c_ = std::vector<float>(9000);
  offload::BusSchedule bus_;
  std::unique_ptr<HostStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Bus, HostStoreTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Scheduled" : "None"; });

TEST_P(HostStoreTest, ReadsTensorsInPaddedLayoutAndLeavesPaddingAlone) {
  std::vector<float> expected;
  Append(expected, a_);
  Append(expected, c_);
  EXPECT_EQ(Read({{0, 0, 2}, {2, 0, 3}}), expected);
}

TEST_P(HostStoreTest, ReadsThemInTheOrderOfTheRanges) {
  std::vector<float> expected;
  Append(expected, c_);
  Append(expected, b_);
  EXPECT_EQ(Read({{2, 0, 3}, {1, 0, 1}}), expected);
}

TEST_P(HostStoreTest, ReadsWholeUnitsFromTheMiddleOfATensorAndWhatIsLeftAtItsEnd) {
  std::vector<float> expected;
  Append(expected, std::span(c_).subspan(4096, 4096));
  Append(expected, std::span(a_).subspan(4096));
  EXPECT_EQ(Read({{2, 1, 1}, {0, 1, 1}}), expected);
}

TEST_P(HostStoreTest, RangesOfAFragmentAreItsTensorsInFull) {
  const core::FragmentMap map({{"a", {5000}}, {"b", {64}}, {"c", {9000}}}, {{1}, {0, 2}});
  EXPECT_THAT(RangesOf(map.fragment(0)), ElementsAre(UnitRange{1, 0, 1}));
  EXPECT_THAT(RangesOf(map.fragment(1)), ElementsAre(UnitRange{0, 0, 2}, UnitRange{2, 0, 3}));
}

TEST_P(HostStoreTest, WhatIsReadIsThetaOfThatMomentHoweverSoonItChanges) {
  std::vector<float> expected;
  Append(expected, std::span(a_).subspan(4096));
  Append(expected, c_);
  const UnitRanges ranges = {{0, 1, 1}, {2, 0, 3}};
  std::vector<float> staging(PaddedValues(ranges), kPadding);
  const int64_t ticket = store_->BeginRead(ranges, staging);
  auto copied = std::async(std::launch::async, [&] { EXPECT_TRUE(store_->AwaitRead(ticket).ok()); });
  Train(100);
  copied.get();
  EXPECT_EQ(staging, expected);
  EXPECT_EQ(c_[8999], 100 + expected[4096 + 8999]);
}

TEST_P(HostStoreTest, EachOfSeveralReadsHasThetaOfItsOwnMoment) {
  std::vector<float> first(4096, kPadding), second(4096, kPadding);
  const int64_t early = store_->BeginRead({{1, 0, 1}}, first);
  auto copied = std::async(std::launch::async, [&] { EXPECT_TRUE(store_->AwaitRead(early).ok()); });
  Train(1000);
  const int64_t late = store_->BeginRead({{1, 0, 1}}, second);
  EXPECT_TRUE(store_->AwaitRead(late).ok());
  copied.get();
  EXPECT_EQ(first[63] + 1000, second[63]);
  EXPECT_EQ(second[63], b_[63]);
}

TEST_P(HostStoreTest, ReadsTensorsThatTakeSeveralPieces) {
  std::vector<float> large(offload::BusSchedule::kPiece + 5000), small(10, 2.0f);
  std::iota(large.begin(), large.end(), 1.0f);
  HostStore store({small, large}, GetParam() ? &bus_ : nullptr);
  const int64_t units = core::UnitsFor(std::ssize(large));
  std::vector<float> staging((1 + units) * core::kUnitValues, kPadding), expected;
  EXPECT_TRUE(store.Read({{1, 0, units}, {0, 0, 1}}, staging).ok());
  Append(expected, large);
  Append(expected, small);
  EXPECT_TRUE(staging == expected);
}

TEST_P(HostStoreTest, MixesAnAnchorInWithTheWeightOfTheLocalValue) {
  const std::vector<float> before = a_, other = c_;
  std::vector<float> anchor(2 * core::kUnitValues, NAN);  // padding is not looked at
  for (size_t i = 0; i < a_.size(); ++i) anchor[i] = 0.1f * static_cast<float>(i);
  EXPECT_TRUE(store_->Move({{0, 0, 2}}, Movement::Mix(0.3f, anchor)).ok());
  for (size_t i = 0; i < a_.size(); ++i) {
    const float share = (1.0f - 0.3f) * anchor[i];
    ASSERT_EQ(a_[i], std::fma(0.3f, before[i], share)) << i;
  }
  EXPECT_EQ(c_, other);
}

TEST_P(HostStoreTest, AnAnchorMixedInWithoutTheLocalValueIsTheAnchor) {
  std::vector<float> anchor(core::kUnitValues, NAN);
  std::fill_n(anchor.begin(), b_.size(), -0.0f);
  EXPECT_TRUE(store_->Move({{1, 0, 1}}, Movement::Mix(0, anchor)).ok());
  EXPECT_THAT(b_, Each(0.0f));
  EXPECT_TRUE(std::signbit(b_[0]));
}

TEST_P(HostStoreTest, MovesByAStepWithOneFusedMultiplyAdd) {
  const std::vector<float> a = a_, c = c_;
  const UnitRanges ranges = {{2, 2, 1}, {0, 0, 1}};  // the end of one tensor and the beginning of another
  std::vector<float> step(PaddedValues(ranges), NAN);
  for (int i = 0; i < 808; ++i) step[i] = 0.1f * static_cast<float>(i + 1);
  for (int i = 0; i < 4096; ++i) step[4096 + i] = -0.3f * static_cast<float>(i + 1);
  EXPECT_TRUE(store_->Move(ranges, Movement::Step(0.7f, step)).ok());
  for (int i = 0; i < 808; ++i) ASSERT_EQ(c_[8192 + i], std::fma(-0.7f, step[i], c[8192 + i])) << i;
  for (int i = 0; i < 4096; ++i) ASSERT_EQ(a_[i], std::fma(-0.7f, step[4096 + i], a[i])) << i;
  EXPECT_TRUE(std::equal(c_.begin(), c_.begin() + 8192, c.begin()));
  EXPECT_TRUE(std::equal(a_.begin() + 4096, a_.end(), a.begin() + 4096));
}

TEST_P(HostStoreTest, ObserverIsCalledAfterEachMoveWithItsRanges) {
  std::vector<std::pair<UnitRanges, float>> seen;
  store_->SetObserver([&](const UnitRanges& ranges) { seen.emplace_back(ranges, b_[0]); });
  const std::vector<float> ones(core::kUnitValues, 1.0f);
  const float before = b_[0];
  Read({{1, 0, 1}});  // no Move
  EXPECT_TRUE(store_->Move({{1, 0, 1}}, Movement::Step(1, ones)).ok());
  EXPECT_TRUE(
      store_->Move({{1, 0, 1}, {0, 1, 1}}, Movement::Mix(0, std::vector<float>(2 * core::kUnitValues, 5.0f))).ok());
  EXPECT_THAT(seen, ElementsAre(std::pair(UnitRanges{{1, 0, 1}}, before - 1),
                                std::pair(UnitRanges{{1, 0, 1}, {0, 1, 1}}, 5.0f)));
}

}  // namespace
}  // namespace causeway::replica
