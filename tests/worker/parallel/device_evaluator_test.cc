#include "worker/parallel/device_evaluator.h"

#include <gtest/gtest.h>

#include "core/model_manifest.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "worker/parallel/llama_trainer.h"

namespace causeway::worker {
namespace {

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
