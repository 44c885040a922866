// Rounds of one fragment between two sites and the coordinator's merge, with nothing but the chunks in between.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <memory>
#include <numeric>

#include "core/random.h"
#include "replica/host_store.h"
#include "replica/replica.h"
#include "server/merge/contribution.h"
#include "server/merge/merge.h"

namespace causeway::replica {
namespace {

using core::CodecId;
using core::TensorKind;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr int kSites = 2;

core::FragmentMap Map() {
  return {{{.name = "embedding", .shape = {5000}, .kind = TensorKind::kEmbedding},
           {.name = "norm", .shape = {64}, .kind = TensorKind::kNorm, .layer = 0},
           {.name = "matrix", .shape = {100, 99}, .kind = TensorKind::kMatrix, .layer = 0},
           {.name = "mean", .shape = {300}, .kind = TensorKind::kBuffer, .layer = 0}},
          {{0, 1, 2}}};
}

struct Site {
  std::vector<std::vector<float>> tensors;
  std::unique_ptr<HostStore> store;
  core::BufferPool pool;
  std::unique_ptr<Replica> replica;
};

class RoundsOf : public ::testing::TestWithParam<core::CodecConfig> {
 protected:
  void Start(bool zstd) {
    config_.codec = GetParam();
    config_.codec.zstd = zstd;
    config_.seed = 5;
    const core::Fragment& fragment = map_.fragment(0);
    state_ = {0, core::AlignedFloats(fragment.padded_values()), core::AlignedFloats(fragment.padded_values()), {}};
    if (config_.codec.feedback_down > 0) state_.residual.resize(fragment.padded_values());
    bytes_ = 0;
    for (Site& site : sites_) {
      site.tensors.clear();
      for (const core::TensorSpec& tensor : map_.manifest()) site.tensors.emplace_back(tensor.NumValues(), 0.0f);
      site.store =
          std::make_unique<HostStore>(std::vector<std::span<float>>(site.tensors.begin(), site.tensors.end()), nullptr);
      site.replica = std::make_unique<Replica>(map_, 0, config_, &site.pool);
      core::Buffer theta = ReadTheta(site);
      site.replica->SetInitial(theta.values());
    }
  }

  // θ as the movers read it: into an array that may hold anything.
  core::Buffer ReadTheta(Site& site) {
    core::Buffer staging = site.pool.Take(map_.fragment(0).padded_values());
    EXPECT_TRUE(site.store->Read(ranges_, staging.values()).ok());
    return staging;
  }

  // Small steps of training, of a distribution with many small values.
  void Train(uint64_t seed) {
    for (int m = 0; m < kSites; ++m) {
      uint64_t i = 0;
      for (std::vector<float>& tensor : sites_[m].tensors) {
        for (float& value : tensor) {
          const double u = core::UnitInterval(core::HashCombine(core::HashCombine(seed, uint64_t(m)), ++i));
          value += static_cast<float>(1e-3 * std::pow(2 * u - 1, 3));
        }
      }
    }
  }

  // SEND, merge and APPLY. Every chunk that crosses is counted. `up`: the codec of the version's contributions; the
  // update comes with the codecs that are chosen, of itself and of the next contributions.
  void Round() { Round(config_.codec.up, {}); }
  void Round(CodecId up, const ChosenCodecs& chosen) {
    const std::vector<codecs::ChunkSpan> plan = codecs::PlanChunks(map_.fragment(0), codecs::UpLeg(config_).With(up));
    const codecs::LegCodec down = codecs::DownLeg(config_).With(chosen.down.value_or(config_.codec.down));
    std::vector<std::unique_ptr<server::Contribution>> contributions;
    std::vector<std::vector<codecs::ChunkView>> views;
    for (Site& site : sites_) {
      core::Buffer theta = ReadTheta(site);
      contributions.push_back(std::make_unique<server::Contribution>(plan));
      const auto chunks = site.replica->EncodeContribution(theta.values());
      ASSERT_TRUE(chunks.ok()) << chunks.status();
      for (const core::Bytes& chunk : *chunks) {
        bytes_ += chunk.size();
        EXPECT_TRUE(contributions.back()->Add(std::string(chunk.begin(), chunk.end())).ok());
      }
      ASSERT_TRUE(contributions.back()->complete());
      views.push_back(contributions.back()->Views());
    }
    const std::vector<server::MergeInput> inputs = {{"a", 0.5f, views[0]}, {"b", 0.5f, views[1]}};
    std::vector<std::string> update;
    server::Merge(map_.fragment(0), inputs, {config_.outer, down, config_.codec.feedback_down, config_.codec.zstd},
                  state_, [&](std::string chunk) {
                    bytes_ += chunk.size();
                    update.push_back(std::move(chunk));
                  });
    for (Site& site : sites_) {
      site.replica->Resolve(/*merged=*/true);
      ASSERT_TRUE(site.replica->TakeUpdate(config_.outer, update, chosen, /*keep_step=*/false).ok());
      EXPECT_TRUE(site.store->Move(ranges_, Movement::Mix(0.5f, site.replica->anchor())).ok());
      EXPECT_EQ(site.replica->Held().held.anchor_digest, state_.Digest());
    }
  }

  // Each site's process ends and another goes on from what it had written.
  void RestartSites() {
    for (Site& site : sites_) {
      auto replica = std::make_unique<Replica>(map_, 0, config_, &site.pool);
      ASSERT_TRUE(replica->Restore(site.replica->version(), site.replica->Arrays()).ok());
      site.replica = std::move(replica);
    }
  }

  uint64_t RunRounds(bool zstd) {
    Start(zstd);
    for (uint64_t round = 0; round < 4; ++round) {
      Train(round);
      Round();
    }
    return state_.Digest();
  }

  const core::FragmentMap map_ = Map();
  const UnitRanges ranges_ = RangesOf(map_.fragment(0));
  core::RunConfig config_;
  core::FragmentState state_;
  Site sites_[kSites];
  size_t bytes_ = 0;
};

TEST_P(RoundsOf, SitesAndCoordinatorHoldTheSameBits) {
  Start(/*zstd=*/false);
  const uint64_t before = state_.Digest();
  EXPECT_NE(RunRounds(/*zstd=*/false), before);
}

TEST_P(RoundsOf, CompressionSavesBytesAndChangesNoBit) {
  const uint64_t plain_digest = RunRounds(/*zstd=*/false);
  const size_t plain_bytes = bytes_;
  EXPECT_EQ(RunRounds(/*zstd=*/true), plain_digest);
  EXPECT_LT(bytes_, plain_bytes);  // each has a leg, or exempt tensors, that shrink
}

TEST_P(RoundsOf, AGainMovesBothEndsAlikeAndExemptTensorsNot) {
  config_.outer.momentum = 0;
  const auto moved = [&](float gain, size_t tensor) {
    config_.outer.gain = gain;
    Start(/*zstd=*/false);
    Train(1);
    Round();  // compares digests
    const core::TensorPlace& place = map_.fragment(0).tensors[tensor];
    const auto values =
        std::span<const float>(state_.anchor).subspan(place.first_unit * core::kUnitValues, place.values);
    return std::vector<float>(values.begin(), values.end());
  };
  for (size_t tensor = 0; tensor < map_.manifest().size(); ++tensor) {
    const std::vector<float> once = moved(1, tensor), twice = moved(2, tensor);
    const TensorKind kind = map_.manifest()[tensor].kind;
    const bool exempt = kind == TensorKind::kBuffer || std::ranges::count(GetParam().exempt, kind) > 0;
    for (size_t i = 0; i < once.size(); ++i) ASSERT_EQ(twice[i], (exempt ? 1 : 2) * once[i]) << tensor << " at " << i;
  }
}

TEST_P(RoundsOf, ABufferIsTheMeanWhateverTheOuterOptimizer) {
  const auto anchor_after = [&](const core::OuterParameters& outer) {
    config_.outer = outer;
    RunRounds(/*zstd=*/false);
    return std::vector<float>(state_.anchor.begin(), state_.anchor.end());
  };
  const std::vector<float> mean = anchor_after({.lr = 1, .momentum = 0});
  const std::vector<float> moved = anchor_after({.lr = 0.7f, .momentum = 0.9f, .gain = 2});
  for (const core::TensorPlace& place : map_.fragment(0).tensors) {
    const auto begin = place.first_unit * core::kUnitValues;
    const bool same = std::equal(mean.begin() + begin, mean.begin() + begin + place.values, moved.begin() + begin);
    EXPECT_EQ(same, place.kind == TensorKind::kBuffer) << place.tensor;
  }
}

TEST_P(RoundsOf, ExemptTensorsKeepNearlyWhatTheSitesTrained) {
  if (GetParam().exempt.empty()) return;
  config_.outer = {.lr = 1, .momentum = 0};
  Start(/*zstd=*/false);
  Train(1);
  const std::vector<float> a = sites_[0].tensors[1], b = sites_[1].tensors[1];
  Round();
  const int64_t norm = map_.fragment(0).tensors[1].first_unit * core::kUnitValues;
  for (size_t i = 0; i < a.size(); ++i) {
    const float mean = (a[i] + b[i]) / 2;
    EXPECT_NEAR(state_.anchor[norm + i], mean, 0x1p-8 * (std::abs(a[i]) + std::abs(b[i]))) << i;
  }
}

const std::vector<TensorKind> kExempt = {TensorKind::kNorm, TensorKind::kEmbedding};

INSTANTIATE_TEST_SUITE_P(Codecs, RoundsOf,
                         ::testing::Values(core::CodecConfig{CodecId::kInt4, CodecId::kInt4, 1, 1, {}},
                                           core::CodecConfig{CodecId::kInt8, CodecId::kBfloat16, 0, 0, {}},
                                           core::CodecConfig{CodecId::kRotatedSign, CodecId::kRotatedLm4, 0.9f, 1,
                                                             kExempt},
                                           core::CodecConfig{CodecId::kRotatedLm2, CodecId::kInt4, 1, 1, kExempt},
                                           core::CodecConfig{CodecId::kE3m0, CodecId::kRotatedSign, 1, 0.5f, kExempt},
                                           core::CodecConfig{CodecId::kTopk, CodecId::kInt8, 1, 1, {}},
                                           core::CodecConfig{CodecId::kOnebitAdamSign, CodecId::kTopk, 1, 1, kExempt}),
                         [](const auto& test) {
                           return std::string(core::CodecName(test.param.up)) + "_" + core::CodecName(test.param.down);
                         });

// Rounds whose codecs change in the middle, as `auto` chooses them.
class RoundsOfChangingCodecs : public RoundsOf {};

TEST_P(RoundsOfChangingCodecs, KeepTheSameBitsAtBothEndsAndTheResiduals) {
  Start(/*zstd=*/false);
  const std::vector<CodecId>& up = config_.codec.allow_up;
  const std::vector<CodecId>& down = config_.codec.allow_down;
  CodecId next_up = config_.codec.up;  // version 0 has the cheapest
  for (uint64_t round = 0; round < 9; ++round) {
    Train(round);
    const ChosenCodecs chosen{down[round % down.size()], up[(2 * round + 1) % up.size()]};
    Round(next_up, chosen);  // holds the digests against each other
    if (HasFatalFailure()) FAIL() << "round " << round;
    next_up = *chosen.up;
    if (round == 4) RestartSites();
  }
  EXPECT_EQ(sites_[0].replica->ResidualNorm() > 0, config_.codec.feedback_up > 0);
}

TEST_P(RoundsOfChangingCodecs, CodecsThatTheConfigDoesNotAllowAreRefusedAndChangeNothing) {
  Start(/*zstd=*/false);
  const uint64_t digest = sites_[0].replica->Held().held.anchor_digest;
  const absl::Status status = sites_[0].replica->TakeUpdate(config_.outer, {}, {CodecId::kTopk, std::nullopt}, false);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("a codec that the run's config allows down, got topk"));
  EXPECT_FALSE(sites_[0].replica->TakeUpdate(config_.outer, {}, {std::nullopt, CodecId::kTopk}, false).ok());
  EXPECT_EQ(sites_[0].replica->Held().held.anchor_digest, digest);
  EXPECT_EQ(sites_[0].replica->version(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, RoundsOfChangingCodecs,
    ::testing::Values(core::CodecConfig{CodecId::kRotatedSign,
                                        CodecId::kRotatedSign,
                                        1,
                                        1,
                                        kExempt,
                                        false,
                                        {CodecId::kRotatedLm4, CodecId::kRotatedLm2, CodecId::kRotatedSign},
                                        {CodecId::kRotatedLm4, CodecId::kRotatedLm2, CodecId::kRotatedSign}},
                      core::CodecConfig{CodecId::kSign,
                                        CodecId::kRotatedSign,
                                        1,
                                        1,
                                        {},
                                        false,
                                        {CodecId::kFloat32, CodecId::kInt8, CodecId::kE3m0, CodecId::kSign},
                                        {CodecId::kRotatedLm4, CodecId::kRotatedSign}},
                      core::CodecConfig{CodecId::kInt4,
                                        CodecId::kInt8,
                                        0,
                                        1,
                                        {},
                                        false,
                                        {CodecId::kBfloat16, CodecId::kInt4},
                                        {CodecId::kFloat32, CodecId::kInt8}}));

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
