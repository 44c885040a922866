#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/model_manifest.h"
#include "core/random.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/data/site_batches.h"
#include "worker/parallel/trainer.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr float kAmplitude = 0.7f;
constexpr double kLr = 0.1;

struct Site {
  std::vector<RankUnderTest> ranks;
  std::vector<std::unique_ptr<Trainer>> trainers;
};

Site MakeSite(std::vector<RankUnderTest> ranks, const core::RunConfig& config, const std::string& data = "") {
  Site site{.ranks = std::move(ranks)};
  for (const RankUnderTest& rank : site.ranks) {
    auto trainer = MakeTrainer(config, "eu", {.data_path = data, .ranks = {.values = rank.collectives.get()}});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    site.trainers.push_back(*std::move(trainer));
  }
  return site;
}

// Steps 1 to `steps` on all ranks; the last step's result on rank 0.
StepResult Train(Site& site, core::Step steps) {
  StepResult last;
  const std::vector<absl::Status> statuses =
      OnRanks(static_cast<int>(site.ranks.size()), [&](int rank) -> absl::Status {
        for (core::Step t = 1; t <= steps; ++t) {
          ASSIGN_OR_RETURN(const StepResult result, site.trainers[rank]->Step(t));
          if (rank == 0) last = result;
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return last;
}

// ---- A gradient that is known ----

core::RunConfig NoiseRun() {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kSynthetic;
  config.synthetic.gradient = core::SyntheticGradient::kNoise;
  config.synthetic.tensors = {{"w", {100, 101}, 0.25f}, {"x", {7}, -1.0f}};
  config.synthetic.gradient_by_site = {{"eu", kAmplitude}};
  config.inner = {.optimizer = core::InnerOptimizerKind::kSgd,
                  .lr = kLr,
                  .warmup_steps = 0,
                  .schedule = core::InnerSchedule::kConstant,
                  .weight_decay = 0,
                  .clip = 0};
  return config;
}

// θ of a tensor after `steps` steps, by the formula of worker/parallel/synthetic.h alone.
std::vector<float> Expected(const core::RunConfig& config, int world, int tensor, core::Step steps) {
  std::vector<float> theta(core::SyntheticManifest(config.synthetic)[tensor].NumValues(),
                           config.synthetic.tensors[tensor].init);
  for (core::Step t = 1; t <= steps; ++t) {
    for (size_t j = 0; j < theta.size(); ++j) {
      float sum = 0;
      for (int rank = 0; rank < world; ++rank) {
        uint64_t stream = core::HashCombine(config.seed, "eu");
        if (rank > 0) stream = core::HashCombine(stream, rank);
        stream = core::HashCombine(core::HashCombine(core::HashCombine(stream, tensor), t), j);
        const float own = kAmplitude * static_cast<float>(2 * core::UnitInterval(stream) - 1);
        const float share = own * (1.0f / static_cast<float>(world));
        sum = rank == 0 ? share : sum + share;
      }
      theta[j] = std::fma(sum, static_cast<float>(-kLr), theta[j]);
    }
  }
  return theta;
}

class KnownGradient : public ::testing::TestWithParam<std::tuple<Implementation, int>> {};

TEST_P(KnownGradient, GivesEachRankTheBitsOfTheMeanAndSendsTheBytesOfTheFormula) {
  const auto& [over, world] = GetParam();
  const core::RunConfig config = NoiseRun();
  Site site = MakeSite(over.make(world), config);
  constexpr core::Step kSteps = 3;
  EXPECT_EQ(Train(site, kSteps).tokens, config.inner.batch_size);
  const int64_t values = 100 * 101 + 7;
  for (int rank = 0; rank < world; ++rank) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      const std::span<const float> theta = site.trainers[rank]->tensor(tensor);
      EXPECT_EQ(std::vector<float>(theta.begin(), theta.end()), Expected(config, world, tensor, kSteps));
    }
    // An all-reduce sends 2 (R−1)/R of the gradients, up to a value of rounding in each part; a RankStep, and a
    // sum of squares for each of the two tensors, goes to each.
    const int64_t steps = kSteps * (world - 1) * static_cast<int64_t>(sizeof(RankStep) + 2 * sizeof(double));
    const double gradients = kSteps * 2.0 * (world - 1) / world * static_cast<double>(values * sizeof(float));
    EXPECT_NEAR(static_cast<double>(site.ranks[rank].collectives->sent_bytes() - steps), gradients,
                kSteps * world * 2.0 * sizeof(float));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, KnownGradient,
                         ::testing::Combine(::testing::Values(Implementation{"threads", OverThreads},
                                                              Implementation{"gloo", OverGloo}),
                                            ::testing::Values(2, 4)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param), "_ranks");
                         });

TEST(DataParallel, AGradientThatIsNotFiniteEndsTheStepAlikeOnAllRanks) {
  core::RunConfig config = NoiseRun();
  config.synthetic.gradient_by_site["eu"] = std::numeric_limits<float>::quiet_NaN();
  Site site = MakeSite(OverThreads(2), config);
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](int rank) { return site.trainers[rank]->Step(1).status(); });
  for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(DataParallel, ARankThatIsGoneIsNamedAndNotTakenForARoundThatWasDropped) {
  ThreadRanks threads(2);
  Site site;
  site.ranks.resize(1);
  site.ranks[0].collectives = std::make_unique<OrderedCollectives>(threads.wire(0));
  site = MakeSite(std::move(site.ranks), NoiseRun());
  threads.End(1);
  const absl::Status status = site.trainers[0]->Step(1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "rank 1 of 2 (thread) has ended");
}

TEST(DataParallel, ABatchThatTheRanksDoNotDivideIsRefusedWithBothNumbers) {
  core::RunConfig config = NoiseRun();
  config.inner.batch_by_site = {{"eu", 6}};
  const std::vector<RankUnderTest> ranks = OverThreads(4);
  const absl::Status status = MakeTrainer(config, "eu", {.ranks = {.values = ranks[0].collectives.get()}}).status();
  EXPECT_EQ(status.message(),
            "inner.batch_size or inner.batch_by_site.eu: expected a multiple of the site's 4 ranks, got 6 rows");
}

TEST(DataParallel, RanksBringTheirOwnRowsWhereTheRunSaysSo) {
  core::RunConfig config = NoiseRun();
  config.inner.batch_per_rank = 5;
  Site site = MakeSite(OverThreads(3), config);
  EXPECT_EQ(Train(site, 1).tokens, 15);
}

TEST(DataParallel, ARequestToStopReachesAllRanksWithTheStep) {
  std::vector<RankUnderTest> ranks = OverThreads(2);
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) -> absl::Status {
    RankSteps parallel({.values = ranks[rank].collectives.get(), .stop_requested = [rank] { return rank == 1; }});
    ASSIGN_OR_RETURN(const auto steps, parallel.Share({.compute_s = rank == 1 ? 2.0 : 1.0}));
    const core::RankProgress progress = parallel.progress();
    const bool as_expected = parallel.stop_requested() && progress.ranks == 2 &&
                             progress.slowest == "rank 1 of 2 (thread)" && progress.slowest_step_s == 2;
    return as_expected ? absl::OkStatus() : absl::InternalError(progress.slowest);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// ---- A Llama ----

// The summed gradient of step 1, in buckets of `bucket_bytes`.
std::vector<float> Gradient(const core::LlamaConfig& llama, int world, int64_t bucket_bytes) {
  constexpr int64_t kRows = 8;
  const std::string data = WriteTemporary("parallel", SmallText(20'000));
  const core::Manifest manifest = core::LlamaManifest(llama);
  std::vector<RankUnderTest> ranks = OverThreads(world);
  std::vector<float> first;
  const std::vector<absl::Status> statuses = OnRanks(world, [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Corpus> corpus,
                     Corpus::Open(data, {llama.vocab_size, 2}, llama.max_position_embeddings, 0.05));
    const Batch batch = SiteBatches(corpus, 1, "eu", kRows).BatchAt(1, rank, world);
    TensorValues weights(manifest), gradients(manifest);
    InitializeLlama(llama, 1, weights);
    LlamaModel model(llama, kRows / world, llama.max_position_embeddings, LlamaModel::Use::kTraining);
    const TrainerRanks own{.values = ranks[rank].collectives.get()};
    GradientBuckets buckets(own.values, own.timeout(), bucket_bytes);
    (void)model.Forward(weights.View(), batch);
    buckets.Begin(gradients.Flat());
    model.Backward(weights.View(), batch, gradients.MutableView(), own.data_scale(),
                   [&](int tensor) { buckets.FinalFrom(gradients.First(tensor)); });
    RETURN_IF_ERROR(buckets.Finish());
    if (rank == world - 1) first.assign(gradients.Flat().begin(), gradients.Flat().end());
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return first;
}

double DistanceByNorm(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> difference(a.size());
  std::ranges::transform(a, b, difference.begin(), std::minus());
  return std::sqrt(Dot(difference, difference) / Dot(a, a));
}

TEST(DataParallel, TheGradientOfALlamaIsThatOfOneRank) {
  for (const bool tied : {false, true}) {
    core::LlamaConfig llama = TinyLlama();
    llama.tie_word_embeddings = tied;
    const std::vector<float> alone = Gradient(llama, 1, GradientBuckets::kBytes);
    for (const int world : {2, 4}) {
      const std::vector<float> shared = Gradient(llama, world, GradientBuckets::kBytes);
      EXPECT_LT(DistanceByNorm(alone, shared), 1e-6) << world;
      EXPECT_EQ(shared, Gradient(llama, world, /*bucket_bytes=*/4 * 999)) << "buckets change no bit";
    }
  }
}

TEST(DataParallel, TheLossOfALlamaAfterAHundredStepsIsThatOfOneRank) {
  const std::string data = WriteTemporary("parallel", SmallText(20'000));
  std::vector<double> losses;
  for (const int world : {1, 2, 4}) {
    Site site = MakeSite(OverThreads(world), TinyRun(), data);
    losses.push_back(Train(site, 100).loss);
    for (int rank = 1; rank < world; ++rank) {
      const std::span<const float> first = site.trainers[0]->tensor(1), own = site.trainers[rank]->tensor(1);
      EXPECT_TRUE(std::ranges::equal(first, own)) << "rank " << rank << " has another θ";
    }
  }
  EXPECT_NEAR(losses[1] / losses[0], 1, 1e-4);
  EXPECT_NEAR(losses[2] / losses[0], 1, 1e-4);
}

TEST(SiteBatches, AreDealtToTheRanksInOrder) {
  const auto corpus = Corpus::Open(WriteTemporary("parallel", SmallText(20'000)), {256, 2}, 12, 0.05);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const SiteBatches batches(*corpus, 1, "eu", 8);
  std::vector<int32_t> dealt;
  for (int rank = 0; rank < 4; ++rank) {
    const Batch batch = batches.BatchAt(3, rank, 4);
    dealt.insert(dealt.end(), batch.tokens.begin(), batch.tokens.end());
  }
  EXPECT_EQ(dealt, batches.BatchAt(3).tokens);
}

}  // namespace
}  // namespace causeway::worker
