#include "offload/interleaved_update.h"

#include <gtest/gtest.h>

#include "tests/offload/update_run.h"

namespace causeway::offload {
namespace {

using Runs = FakeDevice::Runs;

UpdateCase RandomCase(uint64_t seed) {
  auto random = [&, draw = uint64_t{0}](uint64_t below) mutable {
    return static_cast<int64_t>(core::HashCombine(core::HashCombine(seed, 77), draw++) % below);
  };
  const int64_t parameters = 1 + random(120);
  return {.parameters = parameters,
          .subgroup = 1 + random(parameters),
          .k = random(5),
          .gradient_type = random(2) == 0 ? GradientType::kBfloat16 : GradientType::kFloat32,
          .steps = 3,
          .seed = seed,
          .rooms = random(2) == 0,
          .early_gradients = random(4) > 0,
          .copy_in_pass = random(4) > 0};
}

std::string RunCase(const UpdateCase& c, FakeDevice* device, core::ThreadTeam* team) {
  UpdateRun run(c, device, team);
  for (int t = 1; t <= c.steps; ++t) {
    run.Step(t);
    if ((c.seed + t) % 3 == 0) run.Mix();
  }
  return run.Differences();
}

TEST(InterleavedUpdate, AnyInterleaveAndSubgroupGiveTheBitsOfOnePlainPassFor100Steps) {
  core::ThreadTeam team(2);
  for (int64_t k : {core::kAllOnCpu, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5}, int64_t{1000}}) {
    for (int64_t subgroup : {1, 100, 333, 999, 1000, 1'000'000}) {
      for (GradientType type : {GradientType::kBfloat16, GradientType::kFloat32}) {
        FakeDevice device(Runs::kStepped, static_cast<uint64_t>(2 + k + subgroup));
        const UpdateCase c = {.parameters = 1000, .subgroup = subgroup, .k = k, .gradient_type = type, .steps = 100};
        if (subgroup == 1 && k != 2) continue;  // one value at a time is slow here, and the same everywhere
        EXPECT_EQ(RunCase(c, &device, &team), "") << "k " << k << ", subgroup " << subgroup;
        EXPECT_EQ(device.allocations(), 0u);
        EXPECT_EQ(device.pinned(), 0u);
      }
    }
  }
}

TEST(InterleavedUpdate, WithoutADeviceGivesTheSameBitsOnAnyNumberOfThreads) {
  for (int threads : {1, 2, 5}) {
    core::ThreadTeam team(threads);
    const UpdateCase c = {
        .parameters = 200'003, .subgroup = 90'001, .gradient_type = GradientType::kFloat32, .steps = 3};
    EXPECT_EQ(RunCase(c, nullptr, &team), "") << threads;
  }
}

TEST(InterleavedUpdate, TenThousandSchedulesSeeEverythingArriveBeforeItIsUsedAndFlushedBeforeItIsReused) {
  core::ThreadTeam team(1);
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    FakeDevice device(Runs::kStepped, seed);
    ASSERT_EQ(RunCase(RandomCase(seed), &device, &team), "") << "seed " << seed;
  }
}

TEST(InterleavedUpdate, ItDoesAndMovesAsPlannedAndGradientsGoEarly) {
  core::ThreadTeam team(1);
  for (const int64_t k : {core::kAllOnCpu, int64_t{1}, int64_t{2}, int64_t{4}}) {
    const UpdateCase c = {.parameters = 1000, .subgroup = 90, .k = k};
    FakeDevice device(Runs::kStepped, 1);
    UpdateRun run(c, &device, &team);
    int64_t early = 0;
    for (int t = 1; t <= 20; ++t) {
      run.Step(t);
      UpdateCounts counts = run.update().counts();
      early += std::exchange(counts.early_gradient_bytes, 0);
      EXPECT_EQ(counts, PlannedCounts(run.update().plan(), c.gradient_type)) << "k " << k;
    }
    EXPECT_EQ(early > 0, k != 1) << "k " << k;
    EXPECT_EQ(run.Differences(), "");
  }
}

class EveryWait : public ::testing::TestWithParam<bool> {};

TEST_P(EveryWait, IsNeeded) {
  core::ThreadTeam team(1);
  // Six subgroups, three of the device: each set is used again.
  const UpdateCase c = {.parameters = 60, .subgroup = 7, .k = 2, .steps = 3, .rooms = GetParam()};
  FakeDevice all(Runs::kStepped, 2);
  ASSERT_EQ(RunCase(c, &all, &team), "");
  ASSERT_GT(all.waits().size(), 8u);
  for (const FakeDevice::Wait& wait : all.waits()) {
    bool noticed = false;
    for (uint64_t seed = 0; seed < 2000 && !noticed; ++seed) {
      FakeDevice device(Runs::kStepped, seed);
      device.Forget(wait);
      UpdateCase seeded = c;
      seeded.seed = seed;
      noticed = !RunCase(seeded, &device, &team).empty();
    }
    EXPECT_TRUE(noticed) << "queue " << static_cast<int>(wait.first) << " need not wait for event " << wait.second;
  }
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutRooms, EveryWait, ::testing::Bool());

// A thousand seeds each: on a busy machine ten thousand take minutes.
class InterleavedUpdateOnThreads : public ::testing::TestWithParam<uint64_t> {};

TEST_P(InterleavedUpdateOnThreads, SchedulesWithRandomDelaysGiveTheSameBits) {
  constexpr uint64_t kSeeds = 1000;
  core::ThreadTeam team(2);
  FakeDevice device(Runs::kThreads, 1);
  for (uint64_t seed = kSeeds * GetParam(); seed < kSeeds * (GetParam() + 1); ++seed) {
    ASSERT_EQ(RunCase(RandomCase(seed), &device, &team), "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(TenThousand, InterleavedUpdateOnThreads, ::testing::Range<uint64_t>(0, 10));

}  // namespace
}  // namespace causeway::offload
