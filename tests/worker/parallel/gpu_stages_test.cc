#include "worker/parallel/gpu_stages.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "plan/pipeline_generators.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/gloo_ranks.h"
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

using MakeDevice = std::function<std::unique_ptr<DeviceRank>()>;  // null: the processor

MakeDevice OnFake(const DeviceSettings& settings) {
  return [settings] { return std::make_unique<DeviceRank>(std::make_unique<FakeBackend>(), settings); };
}

MakeDevice OnFake(ValueType type, Recompute recompute = Recompute::kNone) {
  return OnFake({.type = type, .recompute = recompute});
}

struct More {
  bool shards = false;
  std::string load, save;  // checkpoints; empty: none
  core::Step after = 0;    // where it begins
  std::function<void()> with_trainers = [] {};
};

struct Trained {
  std::vector<std::vector<float>> tensors;  // of the whole model, from each one's first holder
  double loss = 0;
  absl::Status status;  // the first that is not OK
};

Trained Train(const core::RunConfig& config, const plan::PipelineSchedule& schedule, const MakeDevice& make,
              const More& more = {}) {
  static const std::string data = WriteTemporary("text", SmallText(20'000));
  const int width = more.shards ? 2 : 1, world = schedule.devices * width;
  const std::string file = WriteTemporary(
      "schedule", plan::WritePipelineFile({.schedule = schedule, .width = width, .shards = more.shards}));
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
                                        make == nullptr ? nullptr : make()));
    if (!more.load.empty()) RETURN_IF_ERROR(trainers[at]->Load(more.load));
    for (core::Step t = more.after + 1; t <= more.after + kSteps; ++t) {
      ASSIGN_OR_RETURN(const StepResult result, trainers[at]->Step(t));
      if (rank == 0) trained.loss = result.loss;
    }
    if (more.save.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(trainers[at]->GatherState());
    return rank == 0 ? trainers[at]->Save(more.save).status() : absl::OkStatus();
  });
  for (const absl::Status& status : statuses) trained.status.Update(status);
  if (!trained.status.ok()) return trained;
  more.with_trainers();
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
      const Trained alone = Train(config, one, OnFake(type)), processor = Train(config, one, nullptr);
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
    FakeBackend* backend = nullptr;
    const auto make = [&] {
      auto made = std::make_unique<FakeBackend>();
      backend = made.get();
      backend->device().SetMemory(memory);
      return std::make_unique<DeviceRank>(std::move(made), DeviceSettings{.recompute = recompute});
    };
    return Train(config, schedule, make, {.with_trainers = [&] { used = memory - backend->device().free_bytes(); }});
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

// Half of the state may lie on the host; a checkpoint of one place goes on in another, and on one device.
TEST(GpuStages, NoPlaceOfTheStateChangesABit) {
  const TemporaryFolder folder;
  for (const bool tied : {false, true}) {
    core::RunConfig config = RunOf(tied);
    config.offload.subgroup = 500;
    const plan::PipelineSchedule schedule = *plan::Generate("zb_v", {.devices = 2, .micro_batches = kMicroBatches});
    const plan::PipelineSchedule one = *plan::Generate("gpipe", {.devices = 1, .micro_batches = kMicroBatches});
    const auto train = [&](const plan::PipelineSchedule& on, int64_t k, double share, const More& more) {
      config.offload.k = k;
      config.offload.resident_share = share;
      Trained trained = Train(config, on, OnFake(ValueType::kBfloat16), more);
      EXPECT_TRUE(trained.status.ok()) << k << ": " << trained.status;
      return trained.tensors;
    };
    const std::string saved = folder / absl::StrCat("saved", tied);
    const auto expected = train(schedule, core::kResident, core::kAutoShare, {.save = saved});
    const auto later = train(schedule, core::kResident, core::kAutoShare, {.load = saved, .after = kSteps});
    for (const auto& [k, share] : {std::pair<int64_t, double>(1, 0), {2, 0}, {core::kAllOnCpu, 0}, {2, 0.5}}) {
      const std::string own = folder / absl::StrCat("own", tied, "_", k, "_", share);
      EXPECT_EQ(train(schedule, k, share, {.save = own}), expected) << k;
      EXPECT_EQ(train(schedule, k, share, {.load = saved, .after = kSteps}), later) << k;
      EXPECT_EQ(train(one, core::kResident, core::kAutoShare, {.load = own, .after = kSteps}), later) << k;
    }
  }
}

TEST(GpuStages, RefuseShards) {
  core::RunConfig config = RunOf(false);
  config.inner.batch_size = 2 * kMicroBatches;
  const Trained trained = Train(config, *plan::Generate("zeropp", {.devices = 2, .micro_batches = kMicroBatches}),
                                OnFake(ValueType::kFloat32), {.shards = true});
  EXPECT_TRUE(absl::IsInvalidArgument(trained.status));
  EXPECT_THAT(std::string(trained.status.message()), HasSubstr("expected width N copies on a device, got shards"));
}

}  // namespace
}  // namespace causeway::worker
