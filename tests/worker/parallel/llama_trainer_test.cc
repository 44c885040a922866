#include "worker/parallel/llama_trainer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "formats/model_export.h"
#include "formats/safetensors.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/fake_stream.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/ranks/nccl_collectives.h"

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

}  // namespace
}  // namespace causeway::worker
