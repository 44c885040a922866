// Rounds of one fragment between two sites and the coordinator's merge, with nothing but the chunks in between.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "codecs/compression.h"
#include "core/random.h"
#include "replica/host_store.h"
#include "replica/replica.h"
#include "server/merge/contribution.h"
#include "server/merge/merge.h"

namespace causeway::replica {
namespace {

using core::CodecId;
using core::TensorKind;

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

}  // namespace
}  // namespace causeway::replica
