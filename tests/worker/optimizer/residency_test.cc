// Where the optimizer's state lies and is updated changes no bit of θ: on the fake device, syncs included.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "core/layout.h"
#include "offload/interleaved_update.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "worker/optimizer/device_state.h"
#include "worker/optimizer/hosted_state.h"
#include "worker/parallel/llama_trainer.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSubgroup = 700;  // several, none of which ends where a tensor does
constexpr DeviceSettings kBfloat16Settings{.type = ValueType::kBfloat16};

struct Placement {
  const char* name;
  int64_t k;
  double share = core::kAutoShare;
};
constexpr Placement kPlacements[] = {{"resident", core::kResident},      {"one", 1},           {"two", 2},
                                     {"cpu", core::kAllOnCpu},           {"half_two", 2, 0.5}, {"quarter_one", 1, 0.25},
                                     {"half_cpu", core::kAllOnCpu, 0.5}, {"all_shared", 2, 1}};

core::RunConfig RunOf(const Placement& placement) {
  core::RunConfig config = TinyRun();
  config.offload = {.k = placement.k, .resident_share = placement.share, .subgroup = kSubgroup};
  return config;
}

std::string TextFile() {
  static const std::string path = WriteTemporary("residency_text.txt", SmallText(20'000));
  return path;
}

std::unique_ptr<Trainer> Make(const core::RunConfig& config, std::unique_ptr<FakeBackend> backend,
                              const DeviceSettings& settings = kBfloat16Settings) {
  auto trainer = LlamaTrainer::Make(config, "eu", {.data_path = TextFile()},
                                    std::make_unique<DeviceRank>(std::move(backend), settings));
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return trainer.ok() ? *std::move(trainer) : nullptr;
}

// θ of some fragment's ranges: whole tensors, some of which lie on both sides.
replica::UnitRanges SomeRanges(const core::Manifest& manifest) {
  replica::UnitRanges ranges;
  for (size_t i = 0; i < manifest.size(); i += 2) {
    ranges.push_back({static_cast<int>(i), 0, (manifest[i].NumValues() + core::kUnitValues - 1) / core::kUnitValues});
  }
  return ranges;
}

// Steps with a sync in every third: a read that another thread finishes during the next step, then a move. Adds what
// was read, then θ; ends at an error.
void TrainWithSyncs(Trainer& trainer, core::Step first, core::Step last, std::vector<float>& seen) {
  const replica::UnitRanges ranges = SomeRanges(trainer.manifest());
  int64_t units = 0;
  for (const replica::UnitRange& range : ranges) units += range.count;
  std::vector<float> staging(static_cast<size_t>(units * core::kUnitValues)), values(staging.size());
  for (core::Step t = first; t <= last; ++t) {
    std::thread reader;
    if (t % 3 == 0) {
      const int64_t ticket = trainer.store().BeginRead(ranges, staging);
      reader = std::thread([&trainer, ticket] { EXPECT_TRUE(trainer.store().AwaitRead(ticket).ok()); });
    }
    const auto result = trainer.Step(t);
    if (reader.joinable()) reader.join();
    if (!result.ok()) return;
    seen.push_back(static_cast<float>(result->loss));
    if (t % 3 != 0) continue;
    seen.insert(seen.end(), staging.begin(), staging.end());
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.9f * staging[i];
    const bool mixes = t % 2 == 0;
    ASSERT_TRUE(trainer.store()
                    .Move(ranges, mixes ? replica::Movement::Mix(0.5f, values) : replica::Movement::Step(0.1f, values))
                    .ok());
  }
  for (size_t i = 0; i < trainer.manifest().size(); ++i) {
    const std::span<float> tensor = trainer.tensor(static_cast<int>(i));
    seen.insert(seen.end(), tensor.begin(), tensor.end());
  }
}

TEST(ResidencyTest, NoPlaceOfTheStateChangesABitOverFiftyStepsWithSyncsKilledAndResumed) {
  std::vector<float> expected;
  TrainWithSyncs(*Make(RunOf(kPlacements[0]), std::make_unique<FakeBackend>()), 1, 50, expected);
  ASSERT_GT(expected.size(), 100u);
  uint64_t seed = 2;
  for (const Placement& placement : kPlacements) {
    std::vector<float> seen;
    const std::string saved = FolderOfProcess() / placement.name;
    {
      const auto first = Make(RunOf(placement), std::make_unique<FakeBackend>(seed++));
      TrainWithSyncs(*first, 1, 24, seen);
      ASSERT_TRUE(first->Save(saved).ok());
    }
    for (const Placement& after : {placement, kPlacements[0], kPlacements[2]}) {
      const auto second = Make(RunOf(after), std::make_unique<FakeBackend>(seed++));
      ASSERT_TRUE(second->Load(saved).ok());
      std::vector<float> rest;
      TrainWithSyncs(*second, 25, 50, rest);
      ASSERT_GT(rest.size(), 50u);
      ASSERT_TRUE(std::equal(rest.begin(), rest.end(), expected.end() - std::ssize(rest)))
          << placement.name << ", then " << after.name;
    }
  }
}

TEST(ResidencyTest, EachUpdateDoesAndMovesAsPlanned) {
  for (const Placement& placement : kPlacements) {
    const auto trainer = Make(RunOf(placement), std::make_unique<FakeBackend>());
    ASSERT_TRUE(trainer->Step(1).ok() && trainer->Step(2).ok());
    const core::OffloadProgress progress = *trainer->offload_progress();
    const int64_t parameters = core::FlatOffsets(trainer->manifest()).back();
    const offload::SubgroupPlan plan{
        .parameters = parameters - progress.resident, .subgroup = kSubgroup, .k = placement.k};
    if (plan.parameters == 0) {
      EXPECT_EQ(progress.k, core::kResident);
      EXPECT_EQ(progress.to_device_bytes + progress.to_host_bytes, 0);
      continue;
    }
    EXPECT_EQ(progress.k, placement.k);
    const double share = static_cast<double>(progress.resident) / static_cast<double>(parameters);
    EXPECT_NEAR(share, std::max(0.0, placement.share), 0.1);
    const offload::UpdateCounts planned = PlannedCounts(plan, offload::GradientType::kFloat32);
    EXPECT_EQ(progress.device_subgroups, planned.device_subgroups);
    EXPECT_EQ(progress.cpu_subgroups, planned.cpu_subgroups);
    EXPECT_EQ(progress.to_device_bytes, planned.to_device_bytes);
    EXPECT_EQ(progress.to_host_bytes, planned.to_host_bytes);
    EXPECT_EQ(progress.early_gradient_bytes > 0, planned.cpu_subgroups > 0) << placement.name;
  }
}

TEST(ResidencyTest, BuffersOfTheUpdateTakeNoMemoryWhereActivationsAreLarger) {
  const auto left = [](const Placement& placement, int64_t subgroup) {
    constexpr int64_t kMemory = int64_t{1} << 30;
    core::RunConfig config = RunOf(placement);
    config.offload.subgroup = subgroup;
    auto backend = std::make_unique<FakeBackend>();
    offload::FakeDevice& device = backend->device();
    device.SetMemory(kMemory);
    const auto trainer = Make(config, std::move(backend));
    EXPECT_TRUE(trainer->Step(1).ok());
    return device.free_bytes();
  };
  const int64_t cpu = left(kPlacements[3], kSubgroup);
  EXPECT_EQ(left(kPlacements[1], kSubgroup), cpu);
  EXPECT_EQ(left(kPlacements[2], kSubgroup), cpu);
  EXPECT_LT(left(kPlacements[1], 100'000'000), cpu);  // two sets of all parameters are more than activations
}

// Steps on a device one of whose waits is forgotten: what syncs read, losses and θ.
std::vector<float> Without(uint64_t seed, const std::set<offload::FakeDevice::Wait>& forgotten,
                           std::set<offload::FakeDevice::Wait>* waits = nullptr) {
  auto backend = std::make_unique<FakeBackend>(seed);
  offload::FakeDevice& device = backend->device();
  for (const offload::FakeDevice::Wait& wait : forgotten) device.Forget(wait);
  const auto trainer = Make(RunOf({"half_two", 2, 0.3}), std::move(backend));
  std::vector<float> seen;
  TrainWithSyncs(*trainer, 1, 4, seen);
  if (waits != nullptr) *waits = device.waits();
  return seen;
}

// All but two: the host waits for the gradients' norm, and so for all of backward, before it updates. That an update by
// itself needs them is shown in tests/offload/interleaved_update_test.cc.
TEST(ResidencyTest, EachWaitThatIsForgottenIsNoticed) {
  std::set<offload::FakeDevice::Wait> waits;
  const std::vector<float> whole = Without(1, {}, &waits);
  EXPECT_GE(waits.size(), 12u);
  std::set<offload::Queue> needless;
  for (const auto& wait : waits) {
    bool noticed = false;
    for (uint64_t seed = 0; seed < 100 && !noticed; ++seed) noticed = Without(seed, {wait}) != whole;
    if (noticed) continue;
    EXPECT_TRUE(needless.insert(wait.first).second) << "event " << wait.second;
  }
  EXPECT_THAT(needless, ::testing::ElementsAre(offload::Queue::kUpdate, offload::Queue::kParameters));
}

// ---- The choice ----

struct Choice {
  core::RunConfig config;
  ResidencyNeeds needs;
};

// A model of 1,000 parameters in bfloat16: 6,000 bytes for gradients and copy, 12,000 for the state; the rest of the
// trainer takes 5,000, 4,000 or 1,000 bytes by the level.
Choice ChoiceWith(int64_t free_bytes) {
  Choice choice;
  choice.config.offload.subgroup = 100;
  choice.needs = {
      .parameters = 1000,
      .type = ValueType::kBfloat16,
      .free_bytes = free_bytes,
      .model_bytes =
          [](Recompute recompute, int64_t) {
            constexpr int64_t kBytes[] = {5000, 4000, 1000};
            return kBytes[static_cast<int>(recompute)];
          },
      .bandwidths =
          [] { return offload::Bandwidths{.dram = 10e9, .to_device = 50e9, .to_host = 50e9, .cpu_parameters = 1e9}; }};
  return choice;
}

TEST(ChooseResidencyTest, StateStaysOnTheDeviceAtTheFirstLevelWithRoomForAllOfIt) {
  for (const auto& [free, recompute] :
       {std::pair(int64_t{30'000}, Recompute::kNone), std::pair(int64_t{26'500}, Recompute::kNormSwiglu),
        std::pair(int64_t{22'500}, Recompute::kBlock)}) {
    const Choice choice = ChoiceWith(free);
    const auto residency = ChooseResidency(choice.config, choice.needs);
    ASSERT_TRUE(residency.ok());
    EXPECT_EQ(residency->resident, 1000) << free;
    EXPECT_EQ(residency->recompute, recompute) << free;
  }
}

TEST(ChooseResidencyTest, ElseAsManySubgroupsAsFitStay) {
  const Choice choice = ChoiceWith(20'000);  // 17,000 to use: 6,000 and the model's 5,000 leave 5 subgroups
  const auto residency = ChooseResidency(choice.config, choice.needs);
  ASSERT_TRUE(residency.ok());
  EXPECT_EQ(residency->recompute, Recompute::kNone);
  EXPECT_EQ(residency->resident, 500);
  EXPECT_EQ(residency->hosted(), 500);
  EXPECT_EQ(residency->plan.k, 1);  // the bus is fast against the memory
  EXPECT_THAT(residency->reason, HasSubstr("least predicted time of"));
}

TEST(ChooseResidencyTest, AGivenKAndShareAreKept) {
  Choice choice = ChoiceWith(1 << 20);
  choice.config.offload.k = 3;
  EXPECT_EQ(ChooseResidency(choice.config, choice.needs)->hosted(), 1000);
  choice.config.offload.resident_share = 0.25;
  const auto residency = ChooseResidency(choice.config, choice.needs);
  EXPECT_EQ(residency->resident, 300);  // 2.5 of 10 subgroups
  EXPECT_EQ(residency->plan.k, 3);
}

TEST(ChooseResidencyTest, Float32AndSgdAreResidentOrRefused) {
  Choice choice = ChoiceWith(1000);
  choice.needs.type = ValueType::kFloat32;
  EXPECT_EQ(ChooseResidency(choice.config, choice.needs)->resident, 1000);
  choice.config.offload.k = 2;
  EXPECT_THAT(std::string(ChooseResidency(choice.config, choice.needs).status().message()),
              HasSubstr("offload.k: expected auto or resident on a device that computes in float32"));
}

TEST(CheckHostMemoryTest, CountsTheCpusSubgroupsAlone) {
  offload::SubgroupPlan plan{.parameters = 1'000'000'000, .subgroup = 100'000'000, .k = core::kAllOnCpu};
  EXPECT_TRUE(CheckHostMemory(plan, 16'700'000'000).ok());  // 12 + 4 bytes of each, and three copies of 0.2 GB
  const absl::Status refused = CheckHostMemory(plan, 16'500'000'000);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(refused.message(), testing::HasSubstr("expected 16.6 GB that can be pinned, 12.0 of p, m and v and 4.6"));
  plan.k = 2;
  EXPECT_TRUE(CheckHostMemory(plan, 14'700'000'000).ok());
  plan.k = 1;
  EXPECT_TRUE(CheckHostMemory(plan, 12'000'000'000).ok());
  EXPECT_FALSE(CheckHostMemory(plan, 11'999'999'999).ok());
}

}  // namespace
}  // namespace causeway::worker
