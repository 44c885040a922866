#include "worker/parallel/llama_trainer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "core/model_manifest.h"
#include "core/random.h"
#include "formats/model_export.h"
#include "formats/safetensors.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/fake_stream.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/data/site_batches.h"
#include "worker/parallel/trainer.h"
#include "worker/ranks/nccl_collectives.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Trainer> Make(const core::RunConfig& config, const std::string& data) {
  auto trainer = MakeTrainer(config, "eu", {.data_path = data});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return *std::move(trainer);
}

Tensors View(Trainer& trainer) {
  Tensors tensors;
  for (size_t i = 0; i < trainer.manifest().size(); ++i) tensors.push_back(trainer.tensor(static_cast<int>(i)));
  return tensors;
}

TEST(LlamaTrainer, LossGoesDownOnASmallText) {
  const auto trainer = Make(TinyRun(), WriteTemporary("text", SmallText(20'000)));
  const double before = *trainer->NewEvaluator()->Loss(View(*trainer));
  EXPECT_NEAR(before, std::log(256.0), 0.3);
  double last = 0;
  for (core::Step t = 1; t <= 60; ++t) {
    const auto result = trainer->Step(t);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->tokens, 8 * 12);
    last = result->loss;
  }
  EXPECT_LT(last, before - 2);
  EXPECT_LT(*trainer->NewEvaluator()->Loss(View(*trainer)), before - 2);
}

TEST(LlamaTrainer, RowsHaveTheSequenceLengthOfTheRunAndTheBitsOfAModelOfThatLength) {
  const std::string data = WriteTemporary("text", SmallText(20'000));
  core::RunConfig config = TinyRun();
  config.llama.max_position_embeddings = 4'000;  // as in the folder of a large model
  config.inner.sequence_length = TinyLlama().max_position_embeddings;
  const auto shorter = Make(config, data), same = Make(TinyRun(), data);
  for (core::Step t = 1; t <= 5; ++t) {
    const auto result = shorter->Step(t);
    EXPECT_EQ(result->tokens, 8 * 12);
    EXPECT_EQ(result->loss, same->Step(t)->loss);
  }
  EXPECT_EQ(*shorter->NewEvaluator()->Loss(View(*shorter)), *same->NewEvaluator()->Loss(View(*same)));
}

TEST(LlamaTrainer, DataOfItsOwnIsNotSharedWhoeverElseIsInTheRun) {
  const std::string data = WriteTemporary("text", SmallText(20'000)), tail = WriteTemporary("tail", SmallText(500));
  core::RunConfig config = TinyRun();
  config.data.mode = core::DataMode::kOwn;
  const auto alone = Make(config, data), among = Make(config, data);
  among->SetSites({"asia", "eu", "us"});
  for (core::Step t = 1; t <= 5; ++t) EXPECT_EQ(alone->Step(t)->loss, among->Step(t)->loss);
  EXPECT_EQ(alone->data().training->tokens, 20'000);
  EXPECT_FALSE(alone->data().held_out);
  const auto held_out = *MakeTrainer(config, "eu", {.data_path = data, .held_out_path = tail});
  EXPECT_EQ(held_out->data().held_out->tokens, 500);
  EXPECT_NE(*held_out->NewEvaluator()->Loss(View(*held_out)), *alone->NewEvaluator()->Loss(View(*held_out)));
  const auto refused = MakeTrainer(TinyRun(), "eu", {.data_path = data, .held_out_path = tail});
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("--held_out: expected none"));
}

TEST(LlamaTrainer, TwoRunsGiveTheSameBits) {
  const std::string data = WriteTemporary("text", SmallText(20'000));
  const auto a = Make(TinyRun(), data), b = Make(TinyRun(), data);
  for (core::Step t = 1; t <= 5; ++t) ASSERT_EQ(a->Step(t)->loss, b->Step(t)->loss);
  for (size_t i = 0; i < a->manifest().size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(View(*a)[i], View(*b)[i])) << a->manifest()[i].name;
  }
}

TEST(LlamaTrainer, ParametersMayBeChangedBetweenSteps) {
  const std::string data = WriteTemporary("text", SmallText(20'000));
  const auto a = Make(TinyRun(), data), b = Make(TinyRun(), data);
  for (float& w : b->tensor(1)) w += 0.1f;
  EXPECT_NE(a->Step(1)->loss, b->Step(1)->loss);
}

TEST(LlamaTrainer, NanInAWeightIsFoundInTheGradientAndNothingMoves) {
  const auto trainer = Make(TinyRun(), WriteTemporary("text", SmallText(20'000)));
  trainer->tensor(19)[3] = std::nanf("");  // model.norm.weight
  const std::vector<float> before(trainer->tensor(1).begin(), trainer->tensor(1).end());
  const auto result = trainer->Step(12);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(result.status().message()),
              testing::AllOf(testing::HasSubstr("gradient of model."), testing::HasSubstr("is nan at index "),
                             testing::HasSubstr(" in step 12")));
  EXPECT_TRUE(std::ranges::equal(before, trainer->tensor(1)));
}

TEST(LlamaTrainer, DataTooSmallForTheSitesFailsTheNextStepUntilSitesLeave) {
  const auto trainer = Make(TinyRun(), WriteTemporary("text", SmallText(300)));  // held out 15, 5 segments
  trainer->SetSites({"eu", "a", "b", "c", "d", "e", "f"});
  EXPECT_EQ(trainer->Step(1).status().code(), absl::StatusCode::kInvalidArgument);
  trainer->SetSites({"eu", "a"});
  EXPECT_TRUE(trainer->Step(1).ok());
}

TEST(LlamaTrainer, StartsFromAModelDirectory) {
  const std::string data = WriteTemporary("text", SmallText(20'000));
  const auto trained = Make(TinyRun(), data);
  for (core::Step t = 1; t <= 3; ++t) ASSERT_TRUE(trained->Step(t).ok());
  const std::string dir = FolderOfProcess() / "init";
  std::filesystem::create_directories(dir);
  ASSERT_TRUE(formats::WriteLocalDump(dir + "/model.safetensors", trained->manifest(), View(*trained)).ok());
  core::RunConfig config = TinyRun();
  config.llama.init_from = dir;
  const auto started = Make(config, data);
  for (size_t i = 0; i < trained->manifest().size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(View(*trained)[i], View(*started)[i])) << i;
  }
}

TEST(LlamaTrainer, WithoutTheFolderToStartFromItHasNoInitialValuesAndSaysSo) {
  const std::string data = WriteTemporary("text", SmallText(20'000));
  core::RunConfig config = TinyRun();
  EXPECT_TRUE(Make(config, data)->initial_values().ok());
  config.llama.init_from = FolderOfProcess() / "no_such_folder";
  const auto trainer = Make(config, data);
  EXPECT_THAT(std::string(trainer->initial_values().message()),
              testing::AllOf(testing::HasSubstr("model.init_from: expected model.safetensors"),
                             testing::HasSubstr("/no_such_folder"), testing::HasSubstr("start a site that has")));
  std::filesystem::create_directories(config.llama.init_from);
  std::ofstream(config.llama.init_from + "/model.safetensors") << "damaged";
  EXPECT_FALSE(MakeTrainer(config, "eu", {.data_path = data}).ok());  // a folder that is there must be sound
}

TEST(LlamaTrainer, NoDataIsAnErrorThatSaysWhatIsMissing) {
  const auto trainer = MakeTrainer(TinyRun(), "eu", {});
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(trainer.status().message()), testing::HasSubstr("--data=PATH"));
}

// Ranks on devices, whose gradients NCCL sums where they lie: over the fake device and the fake NCCL.

const NcclApi& Fake() {
  const auto loaded = LoadNccl(InBuild("tests/worker/ranks/fake/libnccl.so.2"));
  CHECK(loaded.ok());
  return **loaded;
}

constexpr int64_t kBucketBytes = 1024;  // several in a model of some thousand values

// Trains on `world` ranks. Each one's first moments, or why it ended: after one step they are a share of the gradients.
std::vector<absl::StatusOr<std::vector<float>>> TrainOver(int world, core::Step steps, double timeout_s = 60) {
  std::vector<absl::StatusOr<std::vector<float>>> result(world);
  const std::vector<RankUnderTest> ranks = OverThreads(world);
  const std::string text = WriteTemporary("nccl_text.txt", SmallText(20000));
  const auto train = [&](int rank) -> absl::StatusOr<std::vector<float>> {
    Collectives& control = *ranks[rank].collectives;
    ASSIGN_OR_RETURN(std::unique_ptr<Collectives> nccl,
                     MakeNcclCollectives(Fake(), control, std::make_shared<FakeStreamHooks>(), TimeoutOf(60)));
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                     LlamaTrainer::Make(
                         TinyRun(), "eu", {.data_path = text, .ranks = {.values = &control, .timeout_s = timeout_s}},
                         std::make_unique<DeviceRank>(std::make_unique<FakeBackend>(),
                                                      DeviceSettings{.bucket_bytes = kBucketBytes}, std::move(nccl))));
    for (core::Step t = 1; t <= steps; ++t) RETURN_IF_ERROR(trainer->Step(t).status());
    const std::string path = FolderOfProcess() / absl::StrCat(world, "_", rank, ".safetensors");
    RETURN_IF_ERROR(trainer->Save(path).status());
    ASSIGN_OR_RETURN(const formats::SafetensorsFile file, formats::SafetensorsFile::Open(path));
    std::vector<float> all;
    for (const core::TensorSpec& spec : trainer->manifest()) {
      std::vector<float> values(spec.NumValues());
      RETURN_IF_ERROR(file.Read("first_moment." + spec.name, values));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  OnRanks(world, [&](int rank) -> absl::Status {
    result[rank] = train(rank);
    return absl::OkStatus();
  });
  return result;
}

TEST(NcclTrainerTest, GradientsOfTwoRanksAreThoseOfOne) {
  const auto one = TrainOver(1, 1), two = TrainOver(2, 1);
  ASSERT_TRUE(one[0].ok() && two[0].ok() && two[1].ok()) << one[0].status() << two[0].status() << two[1].status();
  EXPECT_TRUE(*two[0] == *two[1]);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < one[0]->size(); ++i) {
    difference += std::pow(static_cast<double>((*one[0])[i]) - (*two[0])[i], 2);
    norm += std::pow(static_cast<double>((*one[0])[i]), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LE(std::sqrt(difference / norm), 1e-6);
}

TEST(NcclTrainerTest, ACollectiveThatFailsEndsTheSiteWithASentence) {
  setenv("FAKE_NCCL_ERROR_AFTER", "3", 1);
  setenv("FAKE_NCCL_RANK", "1", 1);
  const auto ended = TrainOver(2, 5, /*timeout_s=*/5);
  unsetenv("FAKE_NCCL_ERROR_AFTER");
  unsetenv("FAKE_NCCL_RANK");
  for (const auto& rank : ended) {
    EXPECT_EQ(rank.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(rank.status().message()), HasSubstr("remote process exited or there was a network error"));
  }
}

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

TEST(DataParallel, InBfloat16EachRanksGradientAndTheirSumAreRoundedOnce) {
  constexpr int kWorld = 3;
  constexpr size_t kValues = 1000;  // no multiple of the ranks, nor of the buckets
  std::vector<std::vector<float>> of_ranks;
  std::vector<float> expected(kValues);
  for (int rank = 0; rank < kWorld; ++rank) {
    std::vector<float> rounded(kValues), values(kValues);
    for (size_t i = 0; i < kValues; ++i) values[i] = std::sin(static_cast<float>(i * kWorld + rank));
    core::RoundTo(core::DType::kBfloat16, values, rounded);
    for (size_t i = 0; i < kValues; ++i) expected[i] = rank == 0 ? rounded[i] : expected[i] + rounded[i];
    of_ranks.push_back(values);
  }
  core::RoundTo(core::DType::kBfloat16, expected, expected);
  std::vector<RankUnderTest> ranks = OverThreads(kWorld);
  const std::vector<absl::Status> statuses = OnRanks(kWorld, [&](int rank) -> absl::Status {
    Collectives& group = *ranks[rank].collectives;
    int64_t bytes[2] = {};
    for (const core::DType crossing : {core::DType::kFloat32, core::DType::kBfloat16}) {
      GradientBuckets buckets(&group, TimeoutOf(60), /*bytes=*/4 * 300, crossing);
      for (int step = 0; step < 2; ++step) {
        std::vector<float> gradients = of_ranks[rank];
        const int64_t before = group.sent_bytes();
        buckets.Begin(gradients);
        buckets.FinalFrom(500);
        RETURN_IF_ERROR(buckets.Finish());
        bytes[static_cast<int>(crossing)] = group.sent_bytes() - before;
        if (crossing == core::DType::kBfloat16) {
          EXPECT_EQ(gradients, expected) << "rank " << rank << ", step " << step;
        }
      }
    }
    EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]), 0.5, 0.01);
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
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
