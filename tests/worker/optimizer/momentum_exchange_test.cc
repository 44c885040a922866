#include "worker/optimizer/momentum_exchange.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/gloo_ranks.h"

namespace causeway::worker {
namespace {

const core::Manifest kTwoTensors = {
    {.name = "embedding", .shape = {100, 50}}, {.name = "norm", .shape = {3}}, {.name = "head", .shape = {40, 11}}};
constexpr int64_t kValues = 5443;
constexpr int64_t kOneBucket = int64_t{25} << 20;
constexpr int64_t kNoGradient = 77;  // a value whose variance is 0

std::vector<float> Variance() {
  std::vector<float> v(kValues, 0.25f);
  v[kNoGradient] = 0;
  return v;
}

std::vector<float> Momentum(int rank, int step) {
  std::vector<float> m = RandomValues(static_cast<uint64_t>(rank * 1000 + step), kValues);
  m[kNoGradient] = 0;
  return m;
}

// The ranks of a site, as threads, each with its exchange.
class Site {
 public:
  Site(int world, int64_t bucket_bytes) : ranks_(OverThreads(world)), variance_(Variance()) {
    for (const RankUnderTest& rank : ranks_) {
      exchanges_.push_back(std::make_unique<MomentumExchange>(
          kTwoTensors, TrainerRanks{.values = rank.collectives.get(), .timeout_s = 60}, variance_, bucket_bytes));
    }
  }

  int world() const { return static_cast<int>(ranks_.size()); }
  MomentumExchange& operator[](int rank) { return *exchanges_[rank]; }

  std::vector<absl::Status> OnAll(const std::function<absl::Status(int rank, MomentumExchange& exchange)>& body) {
    return OnRanks(world(), [&](int rank) { return body(rank, *exchanges_[rank]); });
  }

  // The values that each rank holds after a step with these momenta.
  std::vector<std::vector<float>> Step(int step) {
    std::vector<std::vector<float>> momenta;
    for (int rank = 0; rank < world(); ++rank) momenta.push_back(Momentum(rank, step));
    for (const absl::Status& status : OnAll([&](int rank, MomentumExchange&exchange) {
           exchange.Begin(momenta[rank]);
           return exchange.Finish();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    return momenta;
  }

  // Σ over ranks of δ / R, and δ̄: what the ranks have not told each other yet.
  std::vector<double> Kept() {
    const MomentumExchange::State state = Gather();
    std::vector<double> kept(state.owned.begin(), state.owned.end());
    for (const std::vector<float>& residual : state.residuals) {
      for (size_t i = 0; i < kept.size(); ++i) kept[i] += residual[i] / static_cast<double>(world());
    }
    return kept;
  }

  MomentumExchange::State Gather() {
    MomentumExchange::State state;
    for (const absl::Status& status : OnAll([&](int rank, MomentumExchange&exchange) -> absl::Status {
           ASSIGN_OR_RETURN(MomentumExchange::State gathered, exchange.Gather());
           if (rank == 0) state = std::move(gathered);
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
    return state;
  }

 private:
  std::vector<RankUnderTest> ranks_;
  std::vector<float> variance_;
  std::vector<std::unique_ptr<MomentumExchange>> exchanges_;
};

class MomentumExchangeTest : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  Site MakeSite() const { return Site(world(), std::get<1>(GetParam())); }
};

TEST_P(MomentumExchangeTest, AllRanksHoldTheSameBits) {
  Site site = MakeSite();
  for (int step = 0; step < 3; ++step) {
    const std::vector<std::vector<float>> averaged = site.Step(step);
    for (const std::vector<float>& other : averaged) EXPECT_EQ(averaged[0], other);
  }
}

TEST_P(MomentumExchangeTest, WhatIsSentAndWhatIsKeptIsWhatTheRanksHad) {
  Site site = MakeSite();
  std::vector<double> had(kValues), sent(kValues);
  for (int step = 0; step < 20; ++step) {
    const std::vector<std::vector<float>> averaged = site.Step(step);
    for (int rank = 0; rank < world(); ++rank) {
      const std::vector<float> own = Momentum(rank, step);
      for (int64_t i = 0; i < kValues; ++i) had[i] += own[i] / static_cast<double>(world());
    }
    for (int64_t i = 0; i < kValues; ++i) sent[i] += averaged[0][i];
  }
  const std::vector<double> kept = site.Kept();
  for (int64_t i = 0; i < kValues; ++i) ASSERT_NEAR(sent[i] + kept[i], had[i], 1e-4) << i;
}

TEST_P(MomentumExchangeTest, AValueThatNoGradientHadReachedStaysZero) {
  Site site = MakeSite();
  for (int step = 0; step < 3; ++step) EXPECT_EQ(site.Step(step)[0][kNoGradient], 0.0f);
  EXPECT_EQ(site.Kept()[kNoGradient], 0.0);
}

TEST_P(MomentumExchangeTest, RestoredInTheSameWorldItGoesOnWithTheSameBits) {
  Site through = MakeSite();
  through.Step(0);
  const MomentumExchange::State state = through.Gather();
  Site restored = MakeSite();
  for (int rank = 0; rank < world(); ++rank) restored[rank].Restore(state);
  EXPECT_EQ(through.Step(1), restored.Step(1));
  EXPECT_EQ(through.Kept(), restored.Kept());
}

TEST_P(MomentumExchangeTest, RestoredInAnotherWorldItKeepsWhatTheRanksHadNotSent) {
  Site through = MakeSite();
  through.Step(0);
  const std::vector<double> kept = through.Kept();
  for (const int other : {1, 3}) {
    Site restored(other, std::get<1>(GetParam()));
    for (int rank = 0; rank < other; ++rank) restored[rank].Restore(through.Gather());
    const std::vector<double> moved = restored.Kept();
    for (int64_t i = 0; i < kValues; ++i) ASSERT_NEAR(moved[i], kept[i], 1e-6) << other << " ranks, value " << i;
  }
}

TEST_P(MomentumExchangeTest, AValueThatIsNotFiniteIsNamed) {
  if (world() == 1) return;  // encodes nothing
  Site site = MakeSite();
  const std::vector<absl::Status> statuses = site.OnAll([&](int rank, MomentumExchange& exchange) {
    std::vector<float> momentum = Momentum(rank, 0);
    momentum[5001] = std::numeric_limits<float>::infinity();
    exchange.Begin(momentum);
    return exchange.Finish();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("expected momenta below 2^100"));
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, MomentumExchangeTest,
                         ::testing::Combine(::testing::Values(1, 2, 4), ::testing::Values(kOneBucket, 4000)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_ranks_buckets_of_", std::get<1>(info.param));
                         });

TEST(MomentumExchangeBytesTest, SendsABitForEachValueOnBothLegsAndAScaleForEachPiece) {
  const std::vector<RankUnderTest> ranks = OverThreads(4);
  const core::Manifest one = {{.name = "matrix", .shape = {1024, 1024}}};
  const std::vector<float> variance(1 << 20, 1.0f);
  for (const absl::Status& status : OnRanks(4, [&](int rank) -> absl::Status {
         MomentumExchange exchange(one, {.values = ranks[rank].collectives.get(), .timeout_s = 60}, variance);
         std::vector<float> momentum = RandomValues(static_cast<uint64_t>(rank), 1 << 20);
         exchange.Begin(momentum);
         RETURN_IF_ERROR(exchange.Finish());
         constexpr int64_t kRange = (int64_t{1} << 18) / 8 + 4;  // bits of a quarter, and its scale
         const int64_t sent = ranks[rank].collectives->sent_bytes();
         return sent == 2 * 3 * kRange ? absl::OkStatus() : absl::InternalError(absl::StrCat(sent, " bytes"));
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace causeway::worker
