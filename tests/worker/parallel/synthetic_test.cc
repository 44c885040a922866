#include "worker/parallel/synthetic.h"

#include <chrono>
#include <thread>

#include "tests/core/virtual_time.h"
#include "tests/worker/model/test_values.h"

namespace causeway::worker {
namespace {

core::RunConfig SyntheticRun() {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kSynthetic;
  config.synthetic.tensors = {{"w", {3}, 0.25f}, {"x", {2, 2}, -1.0f}};
  config.synthetic.gradient_by_site = {{"a", 3 * 0x1p-8f}, {"b", -0x1p-8f}};
  config.inner = {.optimizer = core::InnerOptimizerKind::kSgd,
                  .lr = 0x1p-4,
                  .warmup_steps = 0,
                  .schedule = core::InnerSchedule::kConstant,
                  .weight_decay = 0,
                  .clip = 0};
  return config;
}

std::unique_ptr<Trainer> MakeSynthetic(const core::RunConfig& config, const core::SiteId& site) {
  auto trainer = MakeTrainer(config, site, {});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return *std::move(trainer);
}

void TakeSteps(Trainer& trainer, core::Step first, core::Step last) {
  for (core::Step t = first; t <= last; ++t) ASSERT_TRUE(trainer.Step(t).ok());
}

// θ of some tensors as a sync reads it, one unit each.
std::vector<float> Read(Trainer& trainer, std::initializer_list<int> tensors) {
  replica::UnitRanges ranges;
  for (int tensor : tensors) ranges.push_back({tensor, 0, 1});
  std::vector<float> staging(ranges.size() * core::kUnitValues);
  EXPECT_TRUE(trainer.store().Read(ranges, staging).ok());
  return staging;
}

TEST(Synthetic, ConstantGradientMovesEveryValueByItsExactSum) {
  const auto trainer = MakeSynthetic(SyntheticRun(), "a");
  TakeSteps(*trainer, 1, 64);
  for (float w : trainer->tensor(0)) EXPECT_EQ(w, 0.25f - 64 * 0x1p-4f * 3 * 0x1p-8f);
  for (float x : trainer->tensor(1)) EXPECT_EQ(x, -1.0f - 64 * 0x1p-4f * 3 * 0x1p-8f);
}

TEST(Synthetic, AnInexactStepIsOneFusedMultiplyAdd) {
  core::RunConfig config = SyntheticRun();
  config.inner.lr = 0.1;
  config.synthetic.gradient_by_site["a"] = 0.3f;
  const auto trainer = MakeSynthetic(config, "a");
  TakeSteps(*trainer, 1, 3);
  float w = 0.25f;
  for (int t = 0; t < 3; ++t) w = std::fma(0.3f, -0.1f, w);
  EXPECT_EQ(trainer->tensor(0)[2], w);
}

TEST(Synthetic, ASiteThatIsNotListedStaysWhereItBegan) {
  const auto trainer = MakeSynthetic(SyntheticRun(), "c");
  TakeSteps(*trainer, 1, 5);
  EXPECT_EQ(trainer->tensor(0)[0], 0.25f);
}

TEST(Synthetic, ManifestHasTensorIAsLayerIAndTheLossIsNan) {
  const auto trainer = MakeSynthetic(SyntheticRun(), "a");
  EXPECT_EQ(core::Describe(trainer->manifest()[1]), "x [2,2] matrix of layer 1");
  const auto result = trainer->Step(1);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(std::isnan(result->loss));
  EXPECT_EQ(trainer->NewEvaluator(), nullptr);
}

TEST(Synthetic, NoiseIsTheDocumentedFunctionOfSeedSiteTensorStepAndIndex) {
  core::RunConfig config = SyntheticRun();
  config.seed = 42;
  config.synthetic.gradient = core::SyntheticGradient::kNoise;
  config.synthetic.gradient_by_site["a"] = 0.5f;
  const auto trainer = MakeSynthetic(config, "a");
  TakeSteps(*trainer, 7, 7);
  const uint64_t stream = core::HashCombine(core::HashCombine(core::HashCombine(42, "a"), uint64_t{1}), uint64_t{7});
  for (uint64_t j = 0; j < 4; ++j) {
    const float g = 0.5f * static_cast<float>(2 * core::UnitInterval(core::HashCombine(stream, j)) - 1);
    EXPECT_EQ(trainer->tensor(1)[j], std::fma(g, -0x1p-4f, -1.0f));
    EXPECT_LE(std::fabs(g), 0.5f);
  }
  const auto other = MakeSynthetic(config, "b");
  TakeSteps(*other, 7, 7);
  EXPECT_NE(other->tensor(1)[0], trainer->tensor(1)[0]);
}

TEST(Synthetic, SeededInitDependsOnTheName) {
  core::RunConfig config = SyntheticRun();
  config.synthetic.seeded_init = true;
  const auto a = MakeSynthetic(config, "a"), b = MakeSynthetic(config, "b");
  EXPECT_TRUE(std::ranges::equal(a->tensor(0), b->tensor(0)));
  EXPECT_NE(a->tensor(0)[0], a->tensor(1)[0]);
  EXPECT_NE(a->tensor(0)[0], a->tensor(0)[1]);
  EXPECT_LT(std::fabs(a->tensor(0)[0]), 0.2f);
}

TEST(Synthetic, NanGradientIsNamedAndLeavesTheParameters) {
  for (const auto apply : {core::SyntheticApply::kEveryStep, core::SyntheticApply::kOnSend}) {
    core::RunConfig config = SyntheticRun();
    config.synthetic.gradient_by_site["a"] = std::nanf("");
    config.synthetic.apply = apply;
    const auto trainer = MakeSynthetic(config, "a");
    const auto result = trainer->Step(9);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(result.status().message(), "gradient of w is nan at index 0 in step 9");
    EXPECT_EQ(trainer->tensor(0)[0], 0.25f);
  }
}

TEST(Synthetic, OnSendTakesTheMissedStepsOfTheGivenTensorsAtOnce) {
  core::RunConfig config = SyntheticRun();
  config.synthetic.apply = core::SyntheticApply::kOnSend;
  const auto trainer = MakeSynthetic(config, "a");
  TakeSteps(*trainer, 1, 10);
  EXPECT_EQ(trainer->tensor(0)[0], 0.25f);
  EXPECT_EQ(Read(*trainer, {0})[0], 0.25f - 10 * 0x1p-4f * 3 * 0x1p-8f);
  EXPECT_EQ(trainer->tensor(0)[0], 0.25f - 10 * 0x1p-4f * 3 * 0x1p-8f);
  EXPECT_EQ(trainer->tensor(1)[0], -1.0f);
  Read(*trainer, {0});  // nothing is missed any more
  EXPECT_EQ(trainer->tensor(0)[0], 0.25f - 10 * 0x1p-4f * 3 * 0x1p-8f);
  TakeSteps(*trainer, 11, 12);
  const std::vector<float> both = Read(*trainer, {0, 1});
  EXPECT_EQ(both[2], 0.25f - 12 * 0x1p-4f * 3 * 0x1p-8f);
  EXPECT_EQ(both[core::kUnitValues + 3], -1.0f - 12 * 0x1p-4f * 3 * 0x1p-8f);
  EXPECT_EQ(trainer->tensor(0)[2], 0.25f - 12 * 0x1p-4f * 3 * 0x1p-8f);
  EXPECT_EQ(trainer->tensor(1)[3], -1.0f - 12 * 0x1p-4f * 3 * 0x1p-8f);
}

TEST(Synthetic, OnSendSumsTheSchedulesLearningRates) {
  core::RunConfig config = SyntheticRun();
  config.synthetic.apply = core::SyntheticApply::kOnSend;
  config.inner.warmup_steps = 4;  // 1/4 + 2/4 + 3/4 + 1 = 2.5 of lr
  const auto trainer = MakeSynthetic(config, "a");
  TakeSteps(*trainer, 1, 4);
  Read(*trainer, {0});
  EXPECT_EQ(trainer->tensor(0)[0], 0.25f - 2.5f * 0x1p-4f * 3 * 0x1p-8f);
}

TEST(Synthetic, OnSendMovesThetaFromWhereTheMissedStepsLeaveIt) {
  core::RunConfig config = SyntheticRun();
  config.synthetic.apply = core::SyntheticApply::kOnSend;
  const auto trainer = MakeSynthetic(config, "a");
  TakeSteps(*trainer, 1, 10);
  const std::vector<float> step(core::kUnitValues, 0.5f);
  EXPECT_TRUE(trainer->store().Move({{0, 0, 1}}, replica::Movement::Step(1, step)).ok());
  EXPECT_EQ(trainer->tensor(0)[0], 0.25f - 10 * 0x1p-4f * 3 * 0x1p-8f - 0.5f);
  EXPECT_EQ(trainer->tensor(1)[0], -1.0f);
  TakeSteps(*trainer, 11, 11);
  const std::vector<float> anchor(core::kUnitValues, 2.0f);
  EXPECT_TRUE(trainer->store()
                  .Move({{0, 0, 1}}, replica::Movement::Mix(0, anchor))
                  .ok());  // the missed step is in what it replaces
  EXPECT_EQ(trainer->tensor(0)[0], 2.0f);
  TakeSteps(*trainer, 12, 12);
  EXPECT_EQ(Read(*trainer, {0})[0], 2.0f - 0x1p-4f * 3 * 0x1p-8f);
  EXPECT_EQ(Read(*trainer, {1})[0], -1.0f - 12 * 0x1p-4f * 3 * 0x1p-8f);
}

TEST(Synthetic, OnSendReadsTheStepThatBeganTheReadThoughLaterOnesAreCaughtUpBeforeItIsCopied) {
  core::RunConfig config = SyntheticRun();
  config.synthetic.apply = core::SyntheticApply::kOnSend;
  const auto trainer = MakeSynthetic(config, "a");
  TakeSteps(*trainer, 1, 4);
  std::vector<float> staging(core::kUnitValues), later(core::kUnitValues);
  const int64_t ticket = trainer->store().BeginRead({{0, 0, 1}}, staging);
  std::thread copies([&] { EXPECT_TRUE(trainer->store().AwaitRead(ticket).ok()); });
  TakeSteps(*trainer, 5, 8);
  EXPECT_TRUE(trainer->store().Read({{0, 0, 1}}, later).ok());
  copies.join();
  EXPECT_EQ(staging[0], 0.25f - 4 * 0x1p-4f * 3 * 0x1p-8f);
  EXPECT_EQ(later[0], 0.25f - 8 * 0x1p-4f * 3 * 0x1p-8f);
}

TEST(Synthetic, StoreOfEveryStepReadsThetaAsItIs) {
  const auto trainer = MakeSynthetic(SyntheticRun(), "a");
  TakeSteps(*trainer, 1, 5);
  const std::vector<float> theta = Read(*trainer, {1, 0});
  EXPECT_EQ(theta[3], trainer->tensor(1)[3]);
  EXPECT_EQ(theta[core::kUnitValues + 2], 0.25f - 5 * 0x1p-4f * 3 * 0x1p-8f);
}

TEST(Synthetic, AJoinersPutOffStepsBeginWithItsFirst) {
  core::RunConfig config = SyntheticRun();
  config.synthetic.apply = core::SyntheticApply::kOnSend;
  const auto trainer = MakeSynthetic(config, "a");
  TakeSteps(*trainer, 101, 102);
  Read(*trainer, {0});
  EXPECT_EQ(trainer->tensor(0)[0], 0.25f - 2 * 0x1p-4f * 3 * 0x1p-8f);
}

TEST(Synthetic, OnSendIsRefusedWhereItHasNoClosedForm) {
  core::RunConfig config = SyntheticRun();
  config.synthetic.apply = core::SyntheticApply::kOnSend;
  config.inner.clip = 1;
  EXPECT_EQ(MakeTrainer(config, "a", {}).status().code(), absl::StatusCode::kInvalidArgument);
  config.inner.clip = 0;
  config.synthetic.gradient = core::SyntheticGradient::kNoise;
  EXPECT_THAT(std::string(MakeTrainer(config, "a", {}).status().message()), testing::HasSubstr("got noise"));
}

TEST(Synthetic, AStepLastsAsLongAsItShould) {
  core::VirtualTime time;
  core::RunConfig config = SyntheticRun();
  config.synthetic.step_ms = 20;
  const auto trainer = MakeSynthetic(config, "a");
  const core::Clock::TimePoint begin = time.Now();
  TakeSteps(*trainer, 1, 3);
  EXPECT_EQ(time.Now() - begin, std::chrono::milliseconds(60));
}

}  // namespace
}  // namespace causeway::worker
