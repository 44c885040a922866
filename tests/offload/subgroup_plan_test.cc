#include "offload/subgroup_plan.h"

#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <latch>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "offload/bus_schedule.h"
#include "offload/calibration.h"
#include "offload/device.h"
#include "offload/gpu_capability.h"
#include "offload/host_array.h"
#include "tests/formats/temporary_folder.h"
#include "tests/offload/fake_device.h"
#include "tests/offload/update_run.h"

namespace causeway::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Range = BusSchedule::Range;

constexpr int64_t kBillion = 1'000'000'000;

// Deep Optimizer States, four A100s, the model called 20B: 15.58e9 parameters, each GPU with a quarter of them. Host
// memory is what limits it.
constexpr int64_t kPublishedParameters = 15'580'000'000;
constexpr Bandwidths kPublished = {.dram = 134.5e9, .to_device = 25e9, .to_host = 25e9};

double PublishedUpdate(int64_t k) {
  return PredictUpdate(kPublishedParameters, 1.0 / static_cast<double>(k), kPublished, 0, 4, kSeparateCopyTraffic);
}

TEST(SubgroupPlan, ModelGivesThePublishedUpdateTimeOfEveryInterleave) {
  EXPECT_NEAR(PublishedUpdate(2), 3.49, 0.02);
  const std::pair<int64_t, double> published[] = {{2, 5.7}, {3, 5.6}, {4, 5.3}, {6, 5.1}, {8, 5.1}, {10, 5.1}};
  // In billions of nominal parameters a second, fitted where k is 2.
  const double nominal = 5.7 * PublishedUpdate(2);
  for (const auto& [k, rate] : published) EXPECT_NEAR(nominal / PublishedUpdate(k) / rate, 1, 0.06) << k;
}

TEST(SubgroupPlan, UpdateIsAsSlowAsTheSlowestOfWhatItUses) {
  const Bandwidths rates = {.dram = 100e9, .to_device = 10e9, .to_host = 5e9, .cpu_parameters = 1e9};
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 0, rates), 1.0);                       // the CPU's arithmetic
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 1, rates), 12 / 5.0);                  // to the host
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 0.5, {.dram = 1e9}), 28.0);            // (32 + 24) / 2
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 0.5, {.to_device = 1e9}, 0, 2), 3.5);  // two devices: (12 + 2) / 2 / 2
  EXPECT_DOUBLE_EQ(PredictUpdate(kBillion, 1, {.to_device = 60e9, .to_host = 60e9, .both_ways = 80e9}), 0.3);
}

TEST(SubgroupPlan, AutoTakesWhatTheModelFindsFastest) {
  const core::OffloadConfig automatic = {.subgroup = kBillion / 10};
  // The bus is fast against memory: everything through the device.
  const SubgroupPlan streamed =
      PlanSubgroups(automatic, kBillion, {.dram = 100e9, .to_device = 60e9, .to_host = 60e9, .cpu_parameters = 3e9});
  EXPECT_EQ(streamed.k, 1);
  EXPECT_DOUBLE_EQ(streamed.predicted_s, 0.24);
  EXPECT_THAT(streamed.reason, HasSubstr("cpu 0.352 s"));
  // Slow: the CPU alone.
  EXPECT_EQ(
      PlanSubgroups(automatic, kBillion, {.dram = 100e9, .to_device = 2e9, .to_host = 2e9, .cpu_parameters = 3e9}).k,
      core::kAllOnCpu);
  // Between: as much as the bus carries meanwhile.
  const Bandwidths between = {.dram = 100e9, .to_device = 20e9, .to_host = 20e9, .cpu_parameters = 1.5e9};
  const SubgroupPlan mixed = PlanSubgroups(automatic, kBillion, between);
  EXPECT_EQ(mixed.k, 3);
  for (int64_t k : {int64_t{1}, int64_t{2}, int64_t{4}, core::kAllOnCpu}) {
    EXPECT_LE(mixed.predicted_s, PlanSubgroups({.k = k, .subgroup = kBillion / 10}, kBillion, between).predicted_s)
        << k;
  }
}

TEST(SubgroupPlan, ConfigOverrules) {
  const SubgroupPlan plan = PlanSubgroups({.k = 3, .subgroup = 100}, 1050, {.dram = 1, .to_device = 1});
  EXPECT_EQ(plan.k, 3);
  EXPECT_EQ(plan.num_subgroups(), 11);
  EXPECT_EQ(plan.Size(10), 50);
  EXPECT_TRUE(plan.OnDevice(0) && plan.OnDevice(3) && plan.OnDevice(9));
  EXPECT_FALSE(plan.OnDevice(1) || plan.OnDevice(10));
  EXPECT_DOUBLE_EQ(plan.DeviceShare(), 400.0 / 1050);
}

TEST(SubgroupPlan, WithoutADeviceAllIsOnTheCpuAndTheReasonSaysWhatWasAskedFor) {
  const SubgroupPlan plan = PlanSubgroups({.k = 2, .subgroup = 10}, 100, {.dram = 1e9, .cpu_parameters = 1e3});
  EXPECT_EQ(plan.k, core::kAllOnCpu);
  EXPECT_DOUBLE_EQ(plan.predicted_s, 0.1);
  EXPECT_THAT(plan.reason, HasSubstr("no device; the config's k is 2"));
}

TEST(GpuCapability, FromEightOnIsTaken) {
  for (const auto& [major, minor] : {std::pair(8, 0), {8, 6}, {8, 9}, {9, 0}, {10, 0}, {12, 1}}) {
    EXPECT_TRUE(CheckCapability({"a GPU", major, minor}).ok()) << major << "." << minor;
  }
}

TEST(GpuCapability, OlderIsRefusedWithTheExpectedAndItsOwn) {
  EXPECT_EQ(CheckCapability({"Tesla T4", 7, 5}),
            absl::UnavailableError("Tesla T4: expected a GPU of compute capability 8.0 or greater, got 7.5"));
  EXPECT_TRUE(absl::IsUnavailable(CheckCapability({"Tesla V100", 7, 0})));
}

TEST(GpuCapability, WithoutAKernelIsRefusedWithThoseOfTheBuild) {
  EXPECT_EQ(NoKernelFor({"a GPU", 10, 0}, "80-real, 90", "no kernel image is available"),
            absl::UnavailableError("a GPU: expected a GPU for which this build has kernels (80-real, 90), got compute "
                                   "capability 10.0: no kernel image is available"));
}

constexpr int64_t kMeasuredParameters = 3'000'000;

TEST(Calibration, MeasuresWhatThereIs) {
  core::ThreadTeam team(2);
  const absl::StatusOr<Bandwidths> host = MeasureBandwidths(kMeasuredParameters, team, nullptr);
  ASSERT_TRUE(host.ok());
  EXPECT_GT(host->dram, 1e6);
  EXPECT_GT(host->cpu_parameters, 1e5);
  EXPECT_EQ(host->to_device, 0);
  FakeDevice device(FakeDevice::Runs::kThreads, 1);
  const absl::StatusOr<Bandwidths> both = MeasureBandwidths(kMeasuredParameters, team, &device);
  ASSERT_TRUE(both.ok());
  EXPECT_GT(both->to_device, 1e6);
  EXPECT_GT(both->to_host, 1e6);
  EXPECT_GT(both->both_ways, 1e6);
  EXPECT_EQ(device.allocations() + device.pinned(), 0u);
}

TEST(Calibration, IsMeasuredOnceForAMachineDeviceAndSize) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cache/causeway/bandwidths.json";
  core::ThreadTeam team(1), two(2);
  const Calibration first = *Calibrate(kMeasuredParameters, team, nullptr, path);
  EXPECT_TRUE(first.measured);
  EXPECT_EQ(first.note, "");
  const Calibration again = *Calibrate(kMeasuredParameters, team, nullptr, path);
  EXPECT_FALSE(again.measured);
  EXPECT_EQ(again.bandwidths, first.bandwidths);
  EXPECT_TRUE(Calibrate(kMeasuredParameters / 2, team, nullptr, path)->measured);
  EXPECT_TRUE(Calibrate(kMeasuredParameters, two, nullptr, path)->measured);
  EXPECT_FALSE(Calibrate(kMeasuredParameters, team, nullptr, path)->measured);
  EXPECT_FALSE(Calibrate(kMeasuredParameters + 1, team, nullptr, path)->measured);  // is much like it
}

TEST(Calibration, OfASmallModelIsNotKept) {
  const TemporaryFolder folder;
  core::ThreadTeam team(1);
  EXPECT_TRUE(Calibrate(1000, team, nullptr, folder / "bandwidths.json")->measured);
  EXPECT_FALSE(std::filesystem::exists(folder / "bandwidths.json"));
}

TEST(Calibration, AFileThatIsNotOneIsWrittenAnew) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/bandwidths.json";
  core::ThreadTeam team(1);
  for (const char* text : {"", "{", "[1]", R"({"format": 2, "machines": 3})", R"({"format": 7})"}) {
    std::ofstream(path) << text;
    EXPECT_TRUE(Calibrate(kMeasuredParameters, team, nullptr, path)->measured) << text;
    EXPECT_FALSE(Calibrate(kMeasuredParameters, team, nullptr, path)->measured) << text;
  }
}

TEST(Calibration, AFileThatCannotBeWrittenCostsOnlyTheMeasurement) {
  core::ThreadTeam team(1);
  const Calibration calibration = *Calibrate(kMeasuredParameters, team, nullptr, "/proc/causeway/bandwidths.json");
  EXPECT_TRUE(calibration.measured);
  EXPECT_THAT(calibration.note, HasSubstr("/proc/causeway/bandwidths.json"));
}

TEST(BusSchedule, CopiesWhatWasAnnouncedInOrderAndInPieces) {
  BusSchedule bus;
  const int64_t ticket = bus.Announce({{5, 10}, {100, BusSchedule::kPiece + 1}, {7, 0}});
  bus.Announce({{30, 1}});  // another copier's
  EXPECT_FALSE(bus.IsCopied({14, 1}));
  EXPECT_TRUE(bus.IsCopied({15, 15}));
  std::vector<Range> pieces;
  bus.Copy(ticket, [&](const Range& piece) { pieces.push_back(piece); });
  EXPECT_EQ(pieces, (std::vector<Range>{{5, 10}, {100, BusSchedule::kPiece}, {100 + BusSchedule::kPiece, 1}}));
  EXPECT_TRUE(bus.IsCopied({0, 30}));
  EXPECT_FALSE(bus.IsCopied({30, 1'000'000'000}));
}

TEST(BusSchedule, NoPieceBeginsWhileAnUpdateRunsButWhatItAwaits) {
  BusSchedule bus;
  const int64_t ticket = bus.Announce({{0, 3 * BusSchedule::kPiece}});
  std::latch first_piece_begun(1), update_begun(1);
  std::atomic<int> pieces = 0;
  std::thread copier([&] {
    bus.Copy(ticket, [&](const Range&) {
      if (++pieces == 1) {
        first_piece_begun.count_down();
        update_begun.wait();
      }
    });
  });
  first_piece_begun.wait();
  bus.BeginUpdate();
  update_begun.count_down();
  bus.AwaitCopied({0, 1});  // the piece that was under way
  EXPECT_EQ(pieces, 1);
  bus.AwaitCopied({2 * BusSchedule::kPiece, 1});
  EXPECT_EQ(pieces, 3);
  EXPECT_GT(bus.waited_s(), 0);
  bus.EndUpdate();
  copier.join();
}

TEST(BusSchedule, UpdateTakesWhatIsCopiedFirstAndTheCopyHasTheValuesOfTheStepBefore) {
  core::ThreadTeam team(2);
  constexpr int64_t kSize = 4 * BusSchedule::kPiece;
  for (FakeDevice* device : {static_cast<FakeDevice*>(nullptr), new FakeDevice(FakeDevice::Runs::kThreads, 3)}) {
    const std::unique_ptr<FakeDevice> owner(device);
    for (int64_t k : {core::kAllOnCpu, int64_t{1}, int64_t{2}}) {
      if (device == nullptr && k != core::kAllOnCpu) continue;
      BusSchedule bus;
      UpdateRun run({.parameters = kSize, .subgroup = kSize / 8, .k = k, .gradient_type = GradientType::kFloat32},
                    device, &team, &bus);
      run.Step(1);
      ASSERT_EQ(run.Differences(), "");
      const std::vector<float> before = run.parameters();
      const Range fragments[] = {{0, 10}, {kSize / 2 - 5, kSize / 4}};  // the first subgroup, and some later ones
      std::vector<float> copy(kSize);
      const int64_t ticket = bus.Announce({std::begin(fragments), std::end(fragments)});
      std::thread copier([&] {
        bus.Copy(ticket, [&](const Range& piece) {
          std::copy_n(run.parameters().begin() + piece.first, piece.count, copy.begin() + piece.first);
        });
      });
      run.Step(2);
      copier.join();
      EXPECT_EQ(run.Differences(), "");
      for (const Range& range : fragments) {
        for (int64_t i = range.first; i < range.first + range.count; ++i) ASSERT_EQ(copy[i], before[i]) << i;
      }
      EXPECT_NE(run.parameters()[0], before[0]);
    }
  }
}

// A thread's state in the runtime of three devices.
struct PlayedRuntime {
  using Error = int;
  using Mode = char;
  static constexpr Mode kRelaxed = 'r';

  static int Current() { return current; }
  static Error Choose(int index) {
    chosen.push_back(index);
    if (index > 2) return 101;
    current = index;
    return 0;
  }
  static bool HasContext(int index) { return contexts.contains(index); }
  static Mode ExchangeMode(Mode to) { return std::exchange(mode, to); }

  static inline int current = 0;
  static inline char mode = 'g';
  static inline std::vector<int> chosen;
  static inline std::set<int> contexts;
};
using Scoped = ScopedDevice<PlayedRuntime>;

class ScopedDeviceTest : public ::testing::Test {
 protected:
  ScopedDeviceTest() {
    PlayedRuntime::current = 0;
    PlayedRuntime::mode = 'g';
    PlayedRuntime::chosen.clear();
    PlayedRuntime::contexts = {0, 1, 2};
  }
};

TEST_F(ScopedDeviceTest, TheThreadHasItsOwnDeviceAgain) {
  {
    const Scoped outer(1);
    EXPECT_EQ(PlayedRuntime::current, 1);
    {
      const Scoped inner(2);
      EXPECT_EQ(PlayedRuntime::current, 2);
    }
    EXPECT_EQ(PlayedRuntime::current, 1);
  }
  EXPECT_THAT(PlayedRuntime::chosen, ElementsAre(1, 2, 1, 0));
}

TEST_F(ScopedDeviceTest, TheSameDeviceIsNotChosenAgain) {
  { const Scoped here(0); }
  EXPECT_THAT(PlayedRuntime::chosen, IsEmpty());
}

TEST_F(ScopedDeviceTest, NoContextIsMadeOnADeviceThatIsNotInUse) {
  PlayedRuntime::contexts = {1};
  { const Scoped here(1); }
  EXPECT_EQ(PlayedRuntime::current, 1);
  EXPECT_THAT(PlayedRuntime::chosen, ElementsAre(1));
}

TEST_F(ScopedDeviceTest, AllocationsDoNotEndAnotherThreadsCapture) {
  {
    const Scoped here(0);
    EXPECT_EQ(PlayedRuntime::mode, 'r');
    { const Scoped inner(1); }
    EXPECT_EQ(PlayedRuntime::mode, 'r');
  }
  EXPECT_EQ(PlayedRuntime::mode, 'g');
}

TEST_F(ScopedDeviceTest, ADeviceThatIsNotThereIsAnError) {
  EXPECT_EQ(Scoped(7).error(), 101);
  EXPECT_EQ(Scoped(1).error(), 0);
  EXPECT_EQ(PlayedRuntime::current, 0);
}

TEST(HostArray, BeginsAsZerosOnACacheLineOrAHugePage) {
  for (const size_t bytes : {size_t{4}, size_t{4096}, (size_t{2} << 20) + 4, size_t{10} << 20}) {
    const HostArray array(bytes);
    const std::span<float> values = array.Values<float>();
    EXPECT_EQ(values.size_bytes(), bytes);
    EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return x == 0; }));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % (bytes < size_t{2} << 20 ? 64 : size_t{2} << 20), 0u);
    values.back() = 1;
  }
  EXPECT_TRUE(HostArray(0).Values<float>().empty());
}

TEST(HostArray, KeepsItsAddressWhereItIsMovedTo) {
  HostArray from(100);
  void* const data = from.data();
  const HostArray to = std::move(from);
  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(to.bytes(), 100u);
}

TEST(PinnedPool, LendsAgainWhatCameBackWithoutPinningIt) {
  FakeDevice device(FakeDevice::Runs::kStepped, 1);
  {
    PinnedPool pool(&device);
    void* first = nullptr;
    {
      const PinnedPool::Array array = *pool.Take(100);
      EXPECT_EQ(array.Values<float>().size(), 25u);
      first = array.data();
      EXPECT_EQ(pool.idle_bytes(), 0);
    }
    EXPECT_EQ(pool.idle_bytes(), 100);
    const PinnedPool::Array smaller = *pool.Take(60), larger = *pool.Take(200);
    EXPECT_EQ(smaller.data(), first);
    EXPECT_EQ(smaller.bytes(), 60u);
    EXPECT_EQ(device.pinned(), 2u);
    EXPECT_EQ(pool.Take(0)->data(), nullptr);
  }
  EXPECT_EQ(device.pinned(), 0u);
}

}  // namespace
}  // namespace causeway::offload
