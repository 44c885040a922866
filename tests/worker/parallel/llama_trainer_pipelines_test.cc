#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "plan/pipeline_generators.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/parallel/serial_reference.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/parallel/llama_data.h"
#include "worker/parallel/llama_trainer.h"
#include "worker/parallel/stage_shards.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 8;
constexpr core::Step kPipelineSteps = 3;

core::RunConfig RunOf(int micro_batches, bool tied, int64_t rows = 0) {
  core::RunConfig config = TinyRun();
  config.llama.num_hidden_layers = kLayers;
  config.llama.tie_word_embeddings = tied;
  config.inner.micro_batches = micro_batches;
  config.inner.batch_size = rows == 0 ? micro_batches : rows;
  return config;
}

std::string PipelineData() {
  static const std::string path = WriteTemporary("text", SmallText(20'000));
  return path;
}

std::string FileOf(const plan::PipelineSchedule& schedule, int width = 1, bool shards = false) {
  return WriteTemporary("schedule", plan::WritePipelineFile({.schedule = schedule, .width = width, .shards = shards}));
}

struct TrainedPipeline {
  std::vector<absl::Status> statuses;
  std::vector<std::unique_ptr<Trainer>> trainers;
  double loss = 0;
};

struct Checkpoint {
  std::string load, save;  // empty: none
  core::Step after = 0;    // where it begins
};

// All ranks take the steps.
TrainedPipeline TrainPipeline(const core::RunConfig& config, const std::string& file, std::vector<RankUnderTest> ranks,
                              const Checkpoint& checkpoint = {}) {
  const auto world = static_cast<int>(ranks.size());
  TrainedPipeline trained;
  trained.trainers.resize(static_cast<size_t>(world));
  trained.statuses = OnRanks(world, [&](int rank) -> absl::Status {
    const auto at = static_cast<size_t>(rank);
    ASSIGN_OR_RETURN(trained.trainers[at],
                     LlamaTrainer::Make(config, "eu",
                                        {.data_path = PipelineData(),
                                         .ranks = {.values = ranks[at].collectives.get(), .timeout_s = 60},
                                         .pipeline_path = file}));
    Trainer& trainer = *trained.trainers[at];
    if (!checkpoint.load.empty()) RETURN_IF_ERROR(trainer.Load(checkpoint.load));
    for (core::Step t = checkpoint.after + 1; t <= checkpoint.after + kPipelineSteps; ++t) {
      ASSIGN_OR_RETURN(const StepResult result, trainer.Step(t));
      if (rank == 0) trained.loss = result.loss;
    }
    if (checkpoint.save.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(trainer.GatherState());
    return rank == 0 ? trainer.Save(checkpoint.save).status() : absl::OkStatus();
  });
  return trained;
}

// The first rank that holds it.
size_t HolderOf(const TrainedPipeline& trained, int tensor) {
  const std::vector<Piece> pieces = trained.trainers[0]->pieces(tensor);
  return pieces.empty() ? 0 : static_cast<size_t>(pieces.front().rank);
}

void ExpectBitsOf(SerialReference& reference, TrainedPipeline& trained, const std::string& what) {
  double loss = 0;
  for (core::Step t = 1; t <= kPipelineSteps; ++t) loss = reference.Step(t);
  for (const absl::Status& status : trained.statuses) ASSERT_TRUE(status.ok()) << what << ": " << status;
  EXPECT_NEAR(trained.loss, loss, 1e-9) << what;
  int held = 0;
  for (size_t i = 0; i < reference.manifest().size(); ++i) {
    const auto tensor = static_cast<int>(i);
    for (const Piece& piece : trained.trainers[0]->pieces(tensor)) {
      ++held;
      EXPECT_TRUE(std::ranges::equal(reference.tensor(tensor),
                                     trained.trainers[static_cast<size_t>(piece.rank)]->tensor(tensor)))
          << what << ": " << reference.manifest()[i].name << " on rank " << piece.rank;
    }
  }
  EXPECT_GE(held, std::ssize(reference.manifest()));
}

void ExpectGeneratorsGiveSerialBits(int devices, const MakeRanks& ranks_of) {
  for (const std::string& name : plan::GeneratorNames()) {
    for (const bool tied : {false, true}) {
      for (const bool late : {false, true}) {
        const int n = name == "dualpipe" || name == "zb_v" ? 2 * devices
                      : name == "interleaved"              ? devices + 1
                                                           : devices;
        const auto schedule = plan::Generate(name, {.devices = devices, .micro_batches = n, .late_sync = late});
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        if (late && schedule->copies == 1) continue;
        const core::RunConfig config = RunOf(n, tied);
        TrainedPipeline trained = TrainPipeline(config, FileOf(*schedule), ranks_of(devices));
        SerialReference reference(config, PipelineData(), schedule->copies, 1);
        ExpectBitsOf(reference, trained, absl::StrCat(name, " D ", devices, tied ? " tied" : "", late ? " late" : ""));
      }
    }
  }
}

TEST(LlamaTrainerPipelines, OfEveryGeneratorHasTheBitsOfASerialRunOverThreads) {
  for (const int devices : {2, 4}) ExpectGeneratorsGiveSerialBits(devices, OverThreads);
}

TEST(LlamaTrainerPipelines, OfEveryGeneratorHasTheBitsOfASerialRunOverGloo) {
  for (const int devices : {2, 4}) ExpectGeneratorsGiveSerialBits(devices, OverGloo);
}

TEST(LlamaTrainerPipelines, OfOneCopyHasTheBitsOfOneRankThatTrainsAsUsual) {
  for (const bool tied : {false, true}) {
    const core::RunConfig config = RunOf(4, tied);
    const auto alone = MakeTrainer(config, "eu", {.data_path = PipelineData()});
    ASSERT_TRUE(alone.ok()) << alone.status();
    for (core::Step t = 1; t <= kPipelineSteps; ++t) ASSERT_TRUE((*alone)->Step(t).ok());
    TrainedPipeline trained =
        TrainPipeline(config, FileOf(*plan::Generate("1f1b", {.devices = 4, .micro_batches = 4})), OverThreads(4));
    for (size_t i = 0; i < (*alone)->manifest().size(); ++i) {
      const auto tensor = static_cast<int>(i);
      const size_t rank = HolderOf(trained, tensor);
      EXPECT_TRUE(
          std::ranges::equal((*alone)->tensor(tensor), trained.trainers[static_cast<size_t>(rank)]->tensor(tensor)));
    }
  }
}

TEST(LlamaTrainerPipelines, ACheckpointGoesOnWithAnyNumberOfDevicesAndWithNone) {
  for (const bool tied : {false, true}) {
    const core::RunConfig config = RunOf(4, tied, 8);
    const std::string saved = WriteTemporary("checkpoint", "");
    const auto on = [&](const plan::GeneratorInput& input, const std::string& name, int width, bool shards,
                        const Checkpoint& checkpoint) {
      const int world = input.devices * width;
      return TrainPipeline(config, FileOf(*plan::Generate(name, input), width, shards), OverThreads(world), checkpoint);
    };
    const plan::GeneratorInput two{.devices = 2, .micro_batches = 4};
    TrainedPipeline first = on(two, "zeropp", 2, true, {.save = saved});  // shards
    for (const absl::Status& status : first.statuses) ASSERT_TRUE(status.ok()) << status;

    const auto alone = MakeTrainer(config, "eu", {.data_path = PipelineData()});
    ASSERT_TRUE(alone.ok() && (*alone)->Load(saved).ok());
    for (core::Step t = kPipelineSteps + 1; t <= 2 * kPipelineSteps; ++t) ASSERT_TRUE((*alone)->Step(t).ok());
    for (const auto& [name, devices] : {std::pair("1f1b", 4), std::pair("zb_v", 2), std::pair("interleaved", 1)}) {
      TrainedPipeline again =
          on({.devices = devices, .micro_batches = 4}, name, 1, false, {.load = saved, .after = kPipelineSteps});
      for (size_t i = 0; i < (*alone)->manifest().size(); ++i) {
        const auto tensor = static_cast<int>(i);
        const size_t rank = HolderOf(again, tensor);
        EXPECT_TRUE(std::ranges::equal((*alone)->tensor(tensor), again.trainers[rank]->tensor(tensor)))
            << name << ": " << (*alone)->manifest()[i].name;
      }
    }
  }
}

TEST(LlamaTrainerPipelines, AGridOfPlacesAndCopiesHasTheBitsOfASerialRun) {
  for (const std::string name : {"1f1b", "dualpipe"}) {
    for (const bool tied : {false, true}) {
      const int n = name == "1f1b" ? 3 : 4;
      const auto schedule = plan::Generate(name, {.devices = 2, .micro_batches = n});
      const core::RunConfig config = RunOf(n, tied, 2 * n);
      TrainedPipeline trained = TrainPipeline(config, FileOf(*schedule, 2), OverThreads(4));
      SerialReference reference(config, PipelineData(), schedule->copies, 2);
      ExpectBitsOf(reference, trained, name);
    }
  }
}

TEST(LlamaTrainerPipelines, AGridOfPlacesAndShardsHasTheBitsOfASerialRun) {
  for (const int unit : {2, 4}) {
    for (const bool tied : {false, true}) {
      const auto schedule = plan::Generate("zeropp", {.devices = 2, .micro_batches = 4, .unit = unit});
      ASSERT_TRUE(schedule.ok()) << schedule.status();
      const core::RunConfig config = RunOf(4, tied, 8);
      TrainedPipeline trained = TrainPipeline(config, FileOf(*schedule, 2, true), OverThreads(4));
      SerialReference reference(config, PipelineData(), 1, 2, unit);
      ExpectBitsOf(reference, trained, absl::StrCat("unit ", unit, tied ? " tied" : ""));
    }
  }
}

// 3vN/U collectives: a gather for each forward and each backward of a unit, and a reduce-scatter; but for the gathers
// of stages that are there already.
TEST(LlamaTrainerPipelines, OfShardsGathersAndScattersAsOftenAsTheFormulaSays) {
  constexpr int kMicroBatches = 8, kUnit = 2, kChunks = 2, kWidth = 2;
  const core::RunConfig config = RunOf(kMicroBatches, false, kWidth * kMicroBatches);
  const plan::PipelineFile fitted = *FitPipeline(
      {.schedule = *plan::Generate("zeropp", {.devices = 2, .micro_batches = kMicroBatches, .unit = kUnit}),
       .width = kWidth,
       .shards = true},
      "zeropp", config, 4);
  const std::string file = FileOf(fitted.schedule, kWidth, /*shards=*/true);
  std::vector<RankUnderTest> ranks = OverThreads(4);
  const std::vector<absl::Status> statuses = OnRanks(4, [&](int rank) -> absl::Status {
    const TrainerRanks own{.values = ranks[static_cast<size_t>(rank)].collectives.get(), .timeout_s = 60};
    ASSIGN_OR_RETURN(
        const auto trainer,
        LlamaTrainer::Make(config, "eu", {.data_path = PipelineData(), .ranks = own, .pipeline_path = file}));
    RETURN_IF_ERROR(trainer->Step(1).status());
    std::map<int, int> uses;
    int already = 0;
    for (const plan::ScheduleStep& step : fitted.schedule.lists[static_cast<size_t>(rank / kWidth)]) {
      if (step.first.kind == plan::OperationKind::kGather && uses[step.first.stage]++ > 0) ++already;
      if (step.first.kind == plan::OperationKind::kRelease) --uses[step.first.stage];
    }
    const auto& shards = dynamic_cast<const StageShards&>(static_cast<LlamaTrainer&>(*trainer).tensors());
    EXPECT_EQ(shards.gathers() + already + shards.scatters(), 3 * kChunks * kMicroBatches / kUnit);
    EXPECT_EQ(shards.scatters(), kChunks * kMicroBatches / kUnit);
    EXPECT_LT(shards.arrays(), 2 * kChunks + 1);  // weights and gradients of the stages that are gathered
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(LlamaTrainerPipelines, ShardsAreRefusedWhereARankWouldHaveNone) {
  const auto fit = [](const std::string& name, int width) {
    return FitPipeline(
               {.schedule = *plan::Generate(name, {.devices = 4, .micro_batches = 4}), .width = width, .shards = true},
               "file", RunOf(4, true), 4 * width)
        .status();
  };
  EXPECT_TRUE(fit("zeropp", 2).ok()) << fit("zeropp", 2);
  EXPECT_EQ(std::string(fit("zeropp", 64).message()),
            "--pipeline: file: expected a tensor for each of a device's ranks, got fewer for width 64 shards");
  EXPECT_THAT(std::string(fit("bitpipe", 2).message()), HasSubstr("expected one copy of the weights"));
}

}  // namespace
}  // namespace causeway::worker
