#include "worker/parallel/gpu_stages.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "core/random.h"
#include "plan/pipeline_generators.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/parallel/device_evaluator.h"
#include "worker/parallel/llama_trainer.h"
#include "worker/parallel/partition_layout.h"

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

struct TrainedStages {
  std::vector<std::vector<float>> tensors;  // of the whole model, from each one's first holder
  double loss = 0;
  absl::Status status;  // the first that is not OK
};

TrainedStages TrainStages(const core::RunConfig& config, const plan::PipelineSchedule& schedule, const MakeDevice& make,
                          const More& more = {}) {
  static const std::string data = WriteTemporary("text", SmallText(20'000));
  const int width = more.shards ? 2 : 1, world = schedule.devices * width;
  const std::string file = WriteTemporary(
      "schedule", plan::WritePipelineFile({.schedule = schedule, .width = width, .shards = more.shards}));
  std::vector<RankUnderTest> ranks = OverThreads(world);
  std::vector<std::unique_ptr<Trainer>> trainers(static_cast<size_t>(world));
  TrainedStages trained;
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
      const TrainedStages alone = TrainStages(config, one, OnFake(type)), processor = TrainStages(config, one, nullptr);
      ASSERT_TRUE(alone.status.ok()) << alone.status;
      for (const std::string& name : plan::GeneratorNames()) {
        const auto schedule = plan::Generate(name, {.devices = 2, .micro_batches = kMicroBatches});
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        const TrainedStages pipelined = TrainStages(config, *schedule, OnFake(type));
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
      const TrainedStages kept = TrainStages(config, schedule, OnFake(type));
      for (const Recompute recompute : {Recompute::kNormSwiglu, Recompute::kBlock}) {
        const TrainedStages made_again = TrainStages(config, schedule, OnFake(type, recompute));
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
    return TrainStages(config, schedule, make,
                       {.with_trainers = [&] { used = memory - backend->device().free_bytes(); }});
  };
  const TrainedStages kept = with(Recompute::kNone, kMemory);
  const int64_t most = used;
  ASSERT_TRUE(with(Recompute::kBlock, kMemory).status.ok());
  const int64_t least = used;
  ASSERT_LT(least, most);
  const TrainedStages fits = with(std::nullopt, most - 1);
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
      TrainedStages trained = TrainStages(config, on, OnFake(ValueType::kBfloat16), more);
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
  const TrainedStages trained =
      TrainStages(config, *plan::Generate("zeropp", {.devices = 2, .micro_batches = kMicroBatches}),
                  OnFake(ValueType::kFloat32), {.shards = true});
  EXPECT_TRUE(absl::IsInvalidArgument(trained.status));
  EXPECT_THAT(std::string(trained.status.message()), HasSubstr("expected width N copies on a device, got shards"));
}

core::Manifest ManifestOf(const std::vector<int64_t>& sizes) {
  core::Manifest manifest;
  for (const int64_t size : sizes) manifest.push_back({.name = "t" + std::to_string(manifest.size()), .shape = {size}});
  return manifest;
}

TEST(PartitionLayout, PartsOfALevelLieInThoseOfTheOneBelow) {
  const PartitionLayout layout(ManifestOf({100, 20}), {{0, 1}}, {2, 3});
  EXPECT_EQ(layout.ranks(), 6);
  EXPECT_EQ(layout.groups()[0].padded, 120);
  const auto part = [](int rank, int64_t first, int64_t count) {
    return Piece{.rank = rank, .tensor = -1, .first = first, .count = count};
  };
  EXPECT_EQ(layout.PartOf(0, kWholeGroup, 5), part(5, 0, 120));
  EXPECT_EQ(layout.PartOf(0, 0, 5), part(5, 60, 60));   // digit 1 of 2
  EXPECT_EQ(layout.PartOf(0, 1, 5), part(5, 100, 20));  // digit 2 of 3 within
  EXPECT_EQ(layout.PartOf(0, 1, 4), part(4, 40, 20));
  EXPECT_EQ(layout.Within(0, part(1, 80, 40)), (std::vector<Piece>{{1, 0, 80, 20, 80}, {1, 1, 0, 20, 100}}));
}

// 10,000 models and sites of 2 to 8 levels.
TEST(PartitionLayout, PartsOfAllRanksAreEveryTensorOnce) {
  for (uint64_t seed = 1; seed <= 10'000; ++seed) {
    const auto draw = [&](uint64_t what, uint64_t most) { return core::HashCombine(seed, what) % most; };
    std::vector<int64_t> of, sizes;
    for (uint64_t l = 0; l < 2 + draw(0, 7); ++l) of.push_back(1 + static_cast<int64_t>(draw(10 + l, 3)));
    std::vector<std::vector<int>> groups(1 + draw(1, 3));
    for (uint64_t i = 0; i < 1 + draw(2, 6); ++i) {
      groups[draw(30 + i, groups.size())].push_back(static_cast<int>(i));
      sizes.push_back(1 + static_cast<int64_t>(draw(20 + i, 1000)));
    }
    const PartitionLayout layout(ManifestOf(sizes), groups, of);
    for (int level = 0; level < static_cast<int>(of.size()); ++level) {
      std::vector<std::vector<int>> times;
      for (const int64_t size : sizes) times.emplace_back(static_cast<size_t>(size));
      for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
        for (size_t g = 0; g < groups.size(); ++g) {
          for (const Piece& part : layout.Within(g, layout.PartOf(g, level, rank))) {
            for (int64_t i = 0; part.tensor >= 0 && i < part.count; ++i) {
              ++times[static_cast<size_t>(part.tensor)][static_cast<size_t>(part.first + i)];
            }
          }
        }
      }
      const auto copies = static_cast<int>(layout.ranks() / layout.Parts(level));
      for (const std::vector<int>& tensor : times) {
        for (const int count : tensor) ASSERT_EQ(count, copies) << "seed " << seed << ", level " << level;
      }
    }
  }
}

core::RunConfig EvaluatedRun() {
  core::RunConfig config = TinyRun();
  config.eval = {.every_rounds = 1, .held_out = 0.2, .batches = 3};
  config.offload.subgroup = 1000;
  return config;
}

std::string EvaluatedText() {
  static const std::string path = WriteTemporary("evaluator_text.txt", SmallText(20'000));
  return path;
}

std::unique_ptr<Trainer> EvaluatedOnFake(const core::RunConfig& config, ValueType type = ValueType::kFloat32) {
  return *LlamaTrainer::Make(
      config, "eu", {.data_path = EvaluatedText()},
      std::make_unique<DeviceRank>(std::make_unique<FakeBackend>(3), DeviceSettings{.type = type}));
}

// Other values than the trainers'.
TensorValues EvaluatedAnchor(const core::RunConfig& config) {
  const core::Manifest manifest = core::LlamaManifest(config.llama);
  TensorValues values(manifest);
  for (int i = 0; i < values.size(); ++i) FillNormal(5, manifest[static_cast<size_t>(i)].name, 0.3, values[i]);
  return values;
}

double EvaluatedLoss(const Trainer& trainer, const TensorValues& values) {
  const absl::StatusOr<double> loss = trainer.NewEvaluator()->Loss(values.View());
  EXPECT_TRUE(loss.ok()) << loss.status();
  return loss.value_or(0);
}

TEST(DeviceEvaluator, GivesTheProcessorsLoss) {
  core::RunConfig config = EvaluatedRun();
  const TensorValues anchor = EvaluatedAnchor(config);
  const double expected = EvaluatedLoss(**MakeTrainer(config, "eu", {.data_path = EvaluatedText()}), anchor);
  EXPECT_NEAR(EvaluatedLoss(*EvaluatedOnFake(config), anchor), expected, 1e-5 * expected);
  EXPECT_NEAR(EvaluatedLoss(*EvaluatedOnFake(config, ValueType::kBfloat16), anchor), expected,
              1e-2 * expected);  // hidden size 16
  config.inner.micro_batches = 4;
  EXPECT_NEAR(EvaluatedLoss(*EvaluatedOnFake(config), anchor), expected, 1e-5 * expected);
  config.inner.micro_batches = 1;
  config.inner.batch_by_site["eu"] = 5;  // the 24 windows are no multiple
  EXPECT_NEAR(EvaluatedLoss(*EvaluatedOnFake(config), anchor), expected, 1e-5 * expected);
}

// The quickstart's width.
TEST(DeviceEvaluator, InBfloat16GivesTheProcessorsLossToAThousandth) {
  core::RunConfig config = EvaluatedRun();
  config.llama.hidden_size = 128;
  config.llama.intermediate_size = 344;
  TensorValues anchor(core::LlamaManifest(config.llama));
  InitializeLlama(config.llama, 3, anchor);
  const double expected = EvaluatedLoss(**MakeTrainer(config, "eu", {.data_path = EvaluatedText()}), anchor);
  EXPECT_NEAR(EvaluatedLoss(*EvaluatedOnFake(config, ValueType::kBfloat16), anchor), expected, 1e-3 * expected);
}

// Wherever the state lies: rooms of an interleaved update lie where activations do.
TEST(DeviceEvaluator, ChangesNoBitOfTheTraining) {
  const core::RunConfig resident = EvaluatedRun();
  core::RunConfig interleaved = resident, on_cpu = resident;
  interleaved.offload.k = 2;
  on_cpu.offload.k = core::kAllOnCpu;
  const TensorValues anchor = EvaluatedAnchor(resident);
  for (const core::RunConfig& config : {resident, interleaved, on_cpu}) {
    const auto evaluated = EvaluatedOnFake(config, ValueType::kBfloat16),
               plain = EvaluatedOnFake(config, ValueType::kBfloat16);
    const auto evaluator = evaluated->NewEvaluator();
    EXPECT_TRUE(evaluator->between_steps());
    double first = 0;
    for (core::Step t = 1; t <= 6; ++t) {
      const double loss = evaluated->Step(t)->loss;
      EXPECT_EQ(loss, plain->Step(t)->loss) << "step " << t;
      const double evaluation = *evaluator->Loss(anchor.View());
      if (t == 1) first = evaluation;
      EXPECT_EQ(evaluation, first);
    }
  }
}

TEST(DeviceEvaluator, ItsMemoryIsCountedBeforeTheStateIsPlaced) {
  core::RunConfig config = EvaluatedRun();
  const auto needs = [&](int64_t evaluation_bytes) {
    return ResidencyNeeds{
        .parameters = 1000,
        .type = ValueType::kBfloat16,
        .free_bytes = 22'000,
        .evaluation_bytes = evaluation_bytes,
        .model_bytes = [](Recompute, int64_t room) { return absl::StatusOr<int64_t>(100 + 2 * room); },
        .bandwidths = [] { return offload::Bandwidths(); }};
  };
  config.offload = {.k = core::kAutoInterleave, .subgroup = 100};
  EXPECT_EQ(ChooseResidency(config, needs(0))->resident, 1000);
  EXPECT_LT(ChooseResidency(config, needs(DeviceEvaluator::Bytes(1000, ValueType::kBfloat16)))->resident, 1000);
}

TEST(DeviceEvaluator, IsNoneWhereNothingIsHeldOut) {
  core::RunConfig config = EvaluatedRun();
  config.eval.held_out = 0;
  EXPECT_EQ(EvaluatedOnFake(config)->NewEvaluator(), nullptr);
}

}  // namespace
}  // namespace causeway::worker
