// Every plan of a site's ranks on every processor with every inner optimizer: it trains like one rank, or is refused
// with a reason.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "plan/pipeline_file.h"
#include "plan/pipeline_generators.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/loop/site_trainer.h"

namespace causeway::worker {
namespace {

using core::InnerOptimizerKind;
using ::testing::HasSubstr;

constexpr int kMicroBatches = 4;
constexpr core::Step kSteps = 4;

struct Plan {
  const char* name;
  int ranks = 1;
  const char* schedule = "";  // of a pipeline of two devices
  bool shards = false;
  std::optional<core::PartitionConfig> partition = std::nullopt;
};

const Plan kPlans[] = {
    {"one rank"},
    {"data parallel", 2},
    {"pipeline", 2, "zb_v"},
    {"pipeline, two copies", 2, "dualpipe"},
    {"pipeline, width 2 copies", 4, "1f1b"},
    {"pipeline, width 2 shards", 4, "zeropp", true},
    {"ZeRO-1", 2, "", false, core::PartitionConfig{"rank", "rank", "site"}},
    {"ZeRO-2", 2, "", false, core::PartitionConfig{"rank", "site", "site"}},
    {"ZeRO-3", 4, "", false, core::PartitionConfig{"site", "site", "site"}},
};

constexpr std::pair<InnerOptimizerKind, const char*> kOptimizers[] = {{InnerOptimizerKind::kAdamW, "adamw"},
                                                                      {InnerOptimizerKind::kSgd, "sgd"},
                                                                      {InnerOptimizerKind::kOnebitAdam, "onebit"}};

// Why a setting is refused; empty: it trains.
std::string Refusal(const Plan& plan, const DeviceChoice& choice, InnerOptimizerKind optimizer) {
  const bool fake = choice.device == "fake", onebit = optimizer == InnerOptimizerKind::kOnebitAdam;
  if (*plan.schedule != '\0') {
    if (onebit) return "inner.optimizer adamw or sgd, got onebit_adam, which averages momenta of whole models";
    if (fake && plan.shards) return "expected width N copies on a device, got shards";
  }
  if (plan.partition) {
    if (fake) return "on which nothing is divided yet";
    return onebit ? "inner.partition: expected none with inner.optimizer: onebit_adam" : "";
  }
  if (fake && !choice.offload_k.empty() && optimizer != InnerOptimizerKind::kAdamW) {
    return "offload.k: expected auto or resident";
  }
  return fake && onebit ? "expected inner.optimizer: adamw or sgd, which are what devices have yet" : "";
}

struct Trained {
  absl::Status status;  // the first that is not OK
  double loss = 0;
};

Trained Train(const Plan& plan, const DeviceChoice& choice, InnerOptimizerKind optimizer) {
  static const std::string data = WriteTemporary("grid_text", SmallText(20'000));
  core::RunConfig config = TinyRun();
  config.llama.num_hidden_layers = 4;
  config.inner.optimizer = optimizer;
  config.inner.batch_size = 4 * kMicroBatches;
  config.inner.micro_batches = kMicroBatches;
  config.inner.freeze_at = 2;
  config.inner.partition = plan.partition;
  TrainerFiles files{.data_path = data};
  if (*plan.schedule != '\0') {
    const plan::PipelineSchedule schedule =
        *plan::Generate(plan.schedule, {.devices = 2, .micro_batches = kMicroBatches});
    files.pipeline_path =
        WriteTemporary("grid_schedule",
                       plan::WritePipelineFile({.schedule = schedule, .width = plan.ranks / 2, .shards = plan.shards}));
  }
  std::vector<RankUnderTest> ranks = OverThreads(plan.ranks);
  std::vector<std::unique_ptr<Trainer>> trainers(ranks.size());
  Trained trained;
  const std::vector<absl::Status> statuses = OnRanks(plan.ranks, [&](int rank) -> absl::Status {
    const auto at = static_cast<size_t>(rank);
    TrainerFiles own = files;
    own.ranks = {.values = ranks[at].collectives.get(), .timeout_s = 60};
    ASSIGN_OR_RETURN(trainers[at], MakeSiteTrainer(choice, config, "eu", own));
    for (core::Step t = 1; t <= kSteps; ++t) {
      ASSIGN_OR_RETURN(const StepResult result, trainers[at]->Step(t));
      if (rank == 0) trained.loss = result.loss;
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) trained.status.Update(status);
  return trained;
}

TEST(TrainerGrid, EveryPlanOnEveryProcessorWithEveryOptimizerTrainsLikeOneRankOrSaysWhyNot) {
  AddDevice("fake", std::make_unique<FakeBackend>);
  const std::pair<DeviceChoice, double> choices[] = {
      {{.device = "cpu"}, 1e-3},
      {{.device = "fake"}, 1e-3},
      {{.device = "fake", .recompute = "block"}, 1e-3},
      {{.device = "fake", .compute_dtype = "bfloat16", .offload_k = "2", .resident_share = "0"}, 3e-2},
  };
  std::map<InnerOptimizerKind, double> alone;
  int trained = 0, refused = 0;
  for (const auto& [choice, tolerance] : choices) {
    for (const Plan& plan : kPlans) {
      for (const auto& [optimizer, name] : kOptimizers) {
        const std::string what = absl::StrCat(plan.name, ", ", choice.device, ", ", name, ", recompute ",
                                              choice.recompute, ", k ", choice.offload_k);
        const Trained got = Train(plan, choice, optimizer);
        const std::string refusal = Refusal(plan, choice, optimizer);
        if (!refusal.empty()) {
          ++refused;
          EXPECT_TRUE(absl::IsInvalidArgument(got.status)) << what << ": " << got.status;
          EXPECT_THAT(std::string(got.status.message()), HasSubstr(refusal)) << what;
          continue;
        }
        ++trained;
        ASSERT_TRUE(got.status.ok()) << what << ": " << got.status;
        const double expected = alone.try_emplace(optimizer, got.loss).first->second;
        // Ranks compress momenta of their own, so that 1-bit Adam differs by more than the order of sums.
        const bool compresses = optimizer == InnerOptimizerKind::kOnebitAdam && plan.ranks > 1;
        EXPECT_NEAR(got.loss, expected, compresses ? 0.2 : tolerance) << what;
      }
    }
  }
  EXPECT_GE(trained, 45);
  EXPECT_GE(refused, 30);
}

}  // namespace
}  // namespace causeway::worker
