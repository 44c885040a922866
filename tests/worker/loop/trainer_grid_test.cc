// Every plan of a site's ranks on every processor with every inner optimizer: it trains like one rank, or is refused
// with a reason.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "plan/pipeline_file.h"
#include "plan/pipeline_generators.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/loop/site_trainer.h"
#include "worker/loop/training_log.h"

namespace causeway::worker {
namespace {

using core::InnerOptimizerKind;
using nlohmann::json;
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

TEST(GpuIndex, IsTheLocalRankWhereSeveralAreVisible) {
  EXPECT_EQ(GpuIndex("cuda", 8, 3), 3);
  EXPECT_EQ(GpuIndex("auto", 8, 3), 3);
  EXPECT_EQ(GpuIndex("cuda", 2, 3), 3);  // which is then not found, with both numbers
}

TEST(GpuIndex, IsZeroWhereALauncherShowsEachRankItsOwn) {
  EXPECT_EQ(GpuIndex("cuda", 1, 3), 0);
  EXPECT_EQ(GpuIndex("auto", 1, 3), 0);
}

TEST(GpuIndex, ThatIsGivenIsTaken) {
  EXPECT_EQ(GpuIndex("cuda:2", 8, 3), 2);
  EXPECT_EQ(GpuIndex("cuda:2", 1, 3), 2);
}

TEST(GpuIndex, IsNoneOfOtherDevices) {
  for (const char* const device : {"cpu", "cuda:", "cuda:-1", "cuda:x", "tpu"}) {
    EXPECT_EQ(GpuIndex(device, 8, 3), std::nullopt) << device;
  }
}

std::vector<absl::Status> Checked(const std::vector<DeviceKind>& kinds) {
  const std::vector<RankUnderTest> ranks = OverThreads(static_cast<int>(kinds.size()));
  return OnRanks(static_cast<int>(kinds.size()), [&](int rank) {
    return CheckSameKind({.values = ranks[rank].collectives.get(), .timeout_s = 60}, kinds[rank]);
  });
}

TEST(CheckSameKind, TakesRanksOfOneKind) {
  for (const DeviceKind kind : {DeviceKind::kProcessor, DeviceKind::kAdded, DeviceKind::kGpu}) {
    for (const absl::Status& status : Checked({kind, kind, kind})) EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(CheckSameKind({}, DeviceKind::kGpu).ok());
}

TEST(CheckSameKind, NamesTheRankThatDiffersOnAllRanks) {
  for (const absl::Status& status : Checked({DeviceKind::kProcessor, DeviceKind::kProcessor, DeviceKind::kGpu})) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 2 of 3"));
    EXPECT_THAT(status.message(), HasSubstr("expected the processor, as rank 0 has, got a GPU"));
  }
}

class TrainingLogTest : public ::testing::Test {
 protected:
  std::vector<json> Lines() const {
    std::ifstream file(path_);
    std::vector<json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "training.jsonl";
};

TEST_F(TrainingLogTest, ALineForEachThingThatHappened) {
  const auto log = TrainingLog::Open(path_, "eu");
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Step(5, {.step = 12, .tokens = 640, .loss = 1.5, .compute_s = 3, .wall_s = 4}, /*rounds=*/2);
  (*log)->Eval(6, 1.25, {2, 3});
  (*log)->Checkpoint(7, 12, 0.5);
  (*log)->Export(8, "out/round-000002", 0.25);
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["kind"], "step");
  EXPECT_EQ(lines[0]["site"], "eu");
  EXPECT_EQ(lines[0]["unix_ms"], 5);
  EXPECT_EQ(lines[0]["step"], 12);
  EXPECT_EQ(lines[0]["tokens"], 640);
  EXPECT_EQ(lines[0]["loss"], 1.5);
  EXPECT_EQ(lines[0]["utilization"], 0.75);
  EXPECT_EQ(lines[0]["rounds"], 2);
  EXPECT_EQ(lines[1], json({{"kind", "eval"}, {"unix_ms", 6}, {"site", "eu"}, {"loss", 1.25}, {"versions", {2, 3}}}));
  EXPECT_EQ(lines[2]["step"], 12);
  EXPECT_EQ(lines[3]["path"], "out/round-000002");
}

TEST_F(TrainingLogTest, AFileThatWasMovedOrRemovedIsBegunAnew) {
  const auto log = TrainingLog::Open(path_, "eu");
  ASSERT_TRUE(log.ok());
  (*log)->Checkpoint(1, 12, 0.5);
  std::filesystem::rename(path_, path_ + ".1");
  (*log)->Checkpoint(2, 13, 0.5);
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_EQ(Lines()[0]["step"], 13);
  std::filesystem::remove(path_);
  std::ofstream(path_).close();  // as `create` of logrotate does
  (*log)->Checkpoint(3, 14, 0.5);
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_EQ(Lines()[0]["step"], 14);
}

TEST_F(TrainingLogTest, NumbersThatAreNotFiniteAreNull) {
  const auto log = TrainingLog::Open(path_, "eu");
  ASSERT_TRUE(log.ok());
  (*log)->Step(5, {.loss = std::nan("")}, 0);
  (*log)->Eval(6, INFINITY, {});
  EXPECT_TRUE(Lines()[0]["loss"].is_null());
  EXPECT_TRUE(Lines()[0]["utilization"].is_null());
  EXPECT_TRUE(Lines()[1]["loss"].is_null());
}

TEST_F(TrainingLogTest, AWorkerThatStartsAgainGoesOnInItsFile) {
  for (int life = 0; life < 2; ++life) {
    const auto log = TrainingLog::Open(path_, "eu");
    ASSERT_TRUE(log.ok());
    (*log)->Eval(life, 1, {});
  }
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(TrainingLogTest, AFileThatCannotBeOpenedIsNamed) {
  const auto log = TrainingLog::Open("/proc/none/x", "eu");
  EXPECT_EQ(log.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("/proc/none/x"));
}

TEST_F(TrainingLogTest, ADiskThatIsFullDoesNotEndTheTraining) {
  const auto log = TrainingLog::Open("/dev/full", "eu");
  ASSERT_TRUE(log.ok());
  (*log)->Eval(1, 1, {});
  (*log)->Eval(2, 1, {});
}

}  // namespace
}  // namespace causeway::worker
