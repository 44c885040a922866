#include "worker/parallel/gpu_stages.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <optional>

#include "core/check.h"
#include "plan/pipeline_generators.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/device/fake_backend.h"
#include "worker/parallel/llama_stages.h"
#include "worker/parallel/llama_trainer.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

constexpr core::Step kSteps = 3;
constexpr int kMicroBatches = 4;

core::RunConfig RunOf(bool tied) {
  core::RunConfig config = TinyRun();
  config.llama.num_hidden_layers = 8;
  config.llama.tie_word_embeddings = tied;
  config.inner.micro_batches = kMicroBatches;
  config.inner.batch_size = kMicroBatches;
  return config;
}

MakeStages OnFake(ValueType type, Recompute recompute = Recompute::kNone) {
  return [type, recompute](const StagesRequest& request) {
    return GpuStages::Make(request, type, recompute, std::make_shared<FakeBackend>());
  };
}

struct Trained {
  std::vector<std::vector<float>> tensors;  // of the whole model, from each one's first holder
  double loss = 0;
  absl::Status status;  // the first that is not OK
};

Trained Train(const core::RunConfig& config, const plan::PipelineSchedule& schedule, const MakeStages& make,
              bool shards = false) {
  static const std::string data = WriteTemporary("text", SmallText(20'000));
  const int width = shards ? 2 : 1, world = schedule.devices * width;
  const std::string file =
      WriteTemporary("schedule", plan::WritePipelineFile({.schedule = schedule, .width = width, .shards = shards}));
  std::vector<RankUnderTest> ranks = OverThreads(world);
  std::vector<std::unique_ptr<Trainer>> trainers(static_cast<size_t>(world));
  Trained trained;
  const std::vector<absl::Status> statuses = OnRanks(world, [&](int rank) -> absl::Status {
    const auto at = static_cast<size_t>(rank);
    ASSIGN_OR_RETURN(trainers[at],
                     LlamaTrainer::Make(config, "eu",
                                        {.data_path = data,
                                         .ranks = {.values = ranks[at].collectives.get(), .timeout_s = 60},
                                         .pipeline_path = file},
                                        make));
    for (core::Step t = 1; t <= kSteps; ++t) {
      ASSIGN_OR_RETURN(const StepResult result, trainers[at]->Step(t));
      if (rank == 0) trained.loss = result.loss;
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) trained.status.Update(status);
  if (!trained.status.ok()) return trained;
  for (size_t i = 0; i < trainers[0]->manifest().size(); ++i) {
    const auto tensor = static_cast<int>(i);
    const std::vector<Piece> pieces = trainers[0]->pieces(tensor);
    const auto values = trainers[pieces.empty() ? 0 : static_cast<size_t>(pieces.front().rank)]->tensor(tensor);
    trained.tensors.emplace_back(values.begin(), values.end());
  }
  return trained;
}

// One copy of the weights has the bits of all stages on one device; two copies sum in another order.
TEST(GpuStages, OfEveryGeneratorTrainLikeOneDeviceAndLikeTheProcessor) {
  for (const bool tied : {false, true}) {
    for (const ValueType type : {ValueType::kFloat32, ValueType::kBfloat16}) {
      const core::RunConfig config = RunOf(tied);
      const plan::PipelineSchedule one = *plan::Generate("gpipe", {.devices = 1, .micro_batches = kMicroBatches});
      const Trained alone = Train(config, one, OnFake(type)), processor = Train(config, one, LlamaStages::Make);
      ASSERT_TRUE(alone.status.ok()) << alone.status;
      for (const std::string& name : plan::GeneratorNames()) {
        const auto schedule = plan::Generate(name, {.devices = 2, .micro_batches = kMicroBatches});
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        const Trained pipelined = Train(config, *schedule, OnFake(type));
        ASSERT_TRUE(pipelined.status.ok()) << name << ": " << pipelined.status;
        if (schedule->copies == 1) {
          EXPECT_EQ(pipelined.tensors, alone.tensors) << name;
          EXPECT_NEAR(pipelined.loss, alone.loss, 1e-9) << name;  // its double is summed in another order
        }
        EXPECT_NEAR(pipelined.loss, processor.loss, type == ValueType::kFloat32 ? 1e-4 : 2e-2) << name;
      }
    }
  }
}

TEST(GpuStages, RecomputationChangesNoBitOfAnySchedule) {
  const core::RunConfig config = RunOf(true);
  for (const ValueType type : {ValueType::kFloat32, ValueType::kBfloat16}) {
    for (const std::string& name : plan::GeneratorNames()) {
      const plan::PipelineSchedule schedule = *plan::Generate(name, {.devices = 2, .micro_batches = kMicroBatches});
      const Trained kept = Train(config, schedule, OnFake(type));
      for (const Recompute recompute : {Recompute::kNormSwiglu, Recompute::kBlock}) {
        const Trained made_again = Train(config, schedule, OnFake(type, recompute));
        ASSERT_TRUE(made_again.status.ok()) << made_again.status;
        EXPECT_EQ(made_again.tensors, kept.tensors) << name << " " << RecomputeName(recompute);
      }
    }
  }
}

TEST(GpuStages, RecomputeAsMuchAsMemoryAsks) {
  constexpr int64_t kMemory = int64_t{1} << 30;
  const core::RunConfig config = RunOf(false);
  const plan::PipelineSchedule schedule = *plan::Generate("gpipe", {.devices = 1, .micro_batches = kMicroBatches});
  int64_t used = 0;
  const auto with = [&](std::optional<Recompute> recompute, int64_t memory) {
    const auto backend = std::make_shared<FakeBackend>();
    backend->device().SetMemory(memory);
    return Train(config, schedule, [&](const StagesRequest& request) {
      auto stages = GpuStages::Make(request, ValueType::kFloat32, recompute, backend);
      used = memory - backend->device().free_bytes();
      return stages;
    });
  };
  const Trained kept = with(Recompute::kNone, kMemory);
  const int64_t most = used;
  ASSERT_TRUE(with(Recompute::kBlock, kMemory).status.ok());
  const int64_t least = used;
  ASSERT_LT(least, most);
  const Trained fits = with(std::nullopt, most - 1);
  ASSERT_TRUE(fits.status.ok()) << fits.status;
  EXPECT_LT(used, most);
  EXPECT_EQ(fits.tensors, kept.tensors);
  EXPECT_TRUE(with(std::nullopt, least).status.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(with(std::nullopt, least - 1).status));
}

TEST(GpuStages, RefuseShards) {
  core::RunConfig config = RunOf(false);
  config.inner.batch_size = 2 * kMicroBatches;
  const Trained trained = Train(config, *plan::Generate("zeropp", {.devices = 2, .micro_batches = kMicroBatches}),
                                OnFake(ValueType::kFloat32), true);
  EXPECT_TRUE(absl::IsInvalidArgument(trained.status));
  EXPECT_THAT(std::string(trained.status.message()), HasSubstr("expected width N copies on a device, got shards"));
}

}  // namespace
}  // namespace causeway::worker
