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
#include "formats/model_export.h"
#include "plan/pipeline_file.h"
#include "plan/pipeline_generators.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/loop/exports.h"
#include "worker/loop/site_trainer.h"
#include "worker/loop/training_log.h"

namespace causeway::worker {
namespace {

using core::InnerOptimizerKind;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

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
  config.inner.onebit.freeze_at = 2;
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

class ExportsTest : public ::testing::Test {
 protected:
  Exports Make(core::Version every, int keep = 3, const std::string& run = "run") {
    return Exports(
        {.directory = directory_, .site = "eu", .every_rounds = every, .keep = keep, .form = {.run_id = run}},
        manifest_, [this](const std::string& path, double) { written_.push_back(path); });
  }

  void Write(Exports& exports, const std::vector<core::Version>& versions) const {
    for (core::Version version : versions) {
      exports.Write(Copy(version));
      exports.Finish();
    }
  }

  AnchorCopy Copy(core::Version version) const {
    return {.tensors = {std::vector<float>(4, static_cast<float>(version))}, .versions = {version, version + 1}};
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) names.push_back(entry.path().filename());
    return names;
  }

  const TemporaryFolder folder_;
  const std::string& directory_ = folder_.path();
  const core::Manifest manifest_ = {{.name = "w", .shape = {4}}};
  std::vector<std::string> written_;
};

TEST_F(ExportsTest, AreDueOnceForEachMultipleOfTheRounds) {
  Exports exports = Make(/*every=*/10);
  exports.Begin(7);
  EXPECT_FALSE(exports.Due(9));
  EXPECT_TRUE(exports.Due(10));
  EXPECT_FALSE(exports.Due(10));
  EXPECT_FALSE(exports.Due(19));
  EXPECT_TRUE(exports.Due(33));  // it looked away for a while
  EXPECT_FALSE(exports.Due(39));
}

TEST_F(ExportsTest, AreNeverDueWithoutADirectoryOrWithoutASchedule) {
  Exports none({.every_rounds = 1}, manifest_, nullptr);
  EXPECT_FALSE(none.Due(5));
  Exports at_the_end = Make(/*every=*/0);
  EXPECT_FALSE(at_the_end.Due(5));
}

TEST_F(ExportsTest, AreNamedByTheRoundsThatAllFragmentsHave) {
  Exports exports = Make(1);
  exports.Write(Copy(12));
  exports.Finish();
  EXPECT_THAT(written_, UnorderedElementsAre(directory_ + "/round-000012"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/round-000012/model.safetensors"));
}

TEST_F(ExportsTest, OfThemTheNewestStayAndWhatIsNotOursIsLeftAlone) {
  std::filesystem::create_directories(directory_ + "/round-table");
  std::filesystem::create_directories(directory_ + "/notes");
  Exports exports = Make(1, /*keep=*/2);
  Write(exports, {8, 9, 10, 11});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000010", "round-000011", "round-table", "notes"));
}

TEST_F(ExportsTest, ThoseOfAnotherRunAreNeitherCountedNorRemovedNorReplaced) {
  Exports first = Make(1, /*keep=*/3, "first"), second = Make(1, /*keep=*/2, "second");
  Write(first, {7, 8, 9});
  Write(second, {1, 2, 3, 8});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000007", "round-000008", "round-000009", "round-000003",
                                            "round-000008-second"));
  EXPECT_EQ(formats::FindExport(directory_ + "/round-000008")->run_id, "first");
  EXPECT_EQ(formats::FindExport(written_.back())->run_id, "second");
}

TEST_F(ExportsTest, OfASiteThatIsAheadStay) {
  Exports behind = Make(1, /*keep=*/1), ahead = Make(1, /*keep=*/1);
  Write(ahead, {60});
  Write(behind, {50});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000050", "round-000060"));
  Write(ahead, {61});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000061"));
}

TEST_F(ExportsTest, AfterANewBeginningThoseOfTheEarlierRoundsGoFirst) {
  Exports before = Make(1, /*keep=*/2);
  Write(before, {100, 101});
  Exports exports = Make(1, /*keep=*/2);
  Write(exports, {1, 2});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000001", "round-000002"));
}

TEST_F(ExportsTest, ACopyByAnotherNameStays) {
  Exports exports = Make(1, /*keep=*/1);
  Write(exports, {4});
  for (const char* copy : {"/round-000099", "/round-000004.bak", "/best"}) {
    std::filesystem::copy(directory_ + "/round-000004", directory_ + copy);
  }
  Write(exports, {5, 6});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000006", "round-000099", "round-000004.bak", "best"));
}

TEST_F(ExportsTest, TheSameRoundsAgainReplaceWhatAnEarlierProcessWrote) {
  Exports exports = Make(1);
  Write(exports, {3});
  std::ofstream(directory_ + "/round-000003/stale") << "x";
  Write(exports, {3});
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/round-000003/stale"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/round-000003/model.safetensors"));
}

TEST_F(ExportsTest, WhereAFolderHasTheNameTheRunIsInIt) {
  std::filesystem::create_directories(directory_ + "/round-000003");
  std::ofstream(directory_ + "/round-000003/thesis.tex") << "x";
  std::ofstream(directory_ + "/round-000004-run") << "x";
  std::ofstream(directory_ + "/round-000004") << "x";
  Exports exports = Make(1);
  Write(exports, {3, 4});
  EXPECT_THAT(written_, UnorderedElementsAre(directory_ + "/round-000003-run"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/round-000003/thesis.tex"));
}

TEST_F(ExportsTest, OneThatCannotBeWrittenIsNotSaidToBe) {
  Exports exports({.directory = "/proc/none", .every_rounds = 1}, manifest_,
                  [this](const std::string& path, double) { written_.push_back(path); });
  exports.Write(Copy(1));
  exports.Finish();
  EXPECT_TRUE(written_.empty());
}

}  // namespace
}  // namespace causeway::worker
