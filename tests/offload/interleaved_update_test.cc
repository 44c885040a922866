#include "offload/interleaved_update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "offload/calibration.h"
#include "offload/device.h"
#include "offload/subgroup_plan.h"
#include "tests/formats/temporary_folder.h"
#include "tests/offload/update_run.h"

namespace causeway::offload {
namespace {

using Runs = FakeDevice::Runs;

// A device on which nothing is computed and everything takes time: what an update queues is kept, and played afterwards
// in virtual time, with the bus, the CPU and the host's memory shared by whatever runs at once.
//
//   backward's Compute, the update's calls ─► a line of operations for each queue, and one for the host ─► Play() ─►
//   when each event came
//
// Each direction of the bus is shared evenly by the copies that run on it. Where more of the host's memory is wanted
// than there is, the bus has its part first and the CPU the rest. The host's own part shows by its copies: the one of
// a subgroup's parameters comes right behind the CPU's update of it.

class TimedDevice final : public Device {
 public:
  explicit TimedDevice(const Bandwidths& rates) : rates_(rates) {}

  // Anything that keeps a queue busy without the bus.
  void Compute(Queue queue, double seconds) { Add(static_cast<int>(queue), {.uses = kTime, .amount = seconds}); }

  std::string name() const override { return "timed"; }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return memory_.emplace_back(bytes).data(); }
  void Free(void*) override {}
  int64_t free_bytes() override { return std::numeric_limits<int64_t>::max(); }
  absl::Status Pin(void*, size_t) override { return absl::OkStatus(); }
  void Unpin(void*) override {}

  void CopyToDevice(Queue queue, void*, const void*, size_t bytes) override {
    constexpr double kCpuBytes = 30, kParameterBytes = 2;  // of host memory for a value, but for the copy's way out
    if (queue == Queue::kParameters) {
      const double values = static_cast<double>(bytes) / kParameterBytes;
      Add(kHost, {.uses = kCpu, .amount = values, .memory_bytes = kCpuBytes * values});
    }
    Add(static_cast<int>(queue),
        {.uses = kToDevice, .amount = static_cast<double>(bytes), .memory_bytes = static_cast<double>(bytes)});
  }
  void CopyToHost(Queue queue, void*, const void*, size_t bytes) override {
    Add(static_cast<int>(queue),
        {.uses = kToHost, .amount = static_cast<double>(bytes), .memory_bytes = static_cast<double>(bytes)});
  }
  void AdamW(Queue, const AdamWConstants&, const AdamWArrays&) override {}  // in the device's memory: no time beside

  double SecondsBetween(Event first, Event last) override {
    const Played played = Play();
    return played.times[records_[last]] - played.times[records_[first]];
  }
  Event MakeEvent() override {
    records_.push_back(-1);
    return static_cast<Event>(records_.size()) - 1;
  }
  void Record(Event event, Queue queue) override {
    records_[event] = marks_++;
    Add(static_cast<int>(queue), {.mark = records_[event]});
  }
  void Await(Queue queue, Event event) override { AwaitOn(static_cast<int>(queue), event); }
  void AwaitOnHost(Event event) override { AwaitOn(kHost, event); }
  absl::Status status() const override { return absl::OkStatus(); }

  struct Played {
    double seconds = 0;         // of everything so far
    std::vector<double> times;  // of each mark
  };
  Played Play() const {
    auto lines = lines_;
    std::vector<bool> done(static_cast<size_t>(marks_));
    std::vector<double> times(done.size());
    int64_t issued = 0;  // of the host's operations
    double now = 0;
    while (true) {
      std::vector<Operation*> running;
      bool moved = false, waiting = false;
      for (int line = 0; line < kLines; ++line) {
        while (!lines[line].empty()) {
          Operation& first = lines[line].front();
          const bool ready = first.after_host <= issued && (first.awaits < 0 || done[first.awaits]);
          if (!ready || first.amount > 0) {
            waiting = true;
            if (ready) running.push_back(&first);
            break;
          }
          if (first.mark >= 0) {
            done[first.mark] = true;
            times[first.mark] = now;
          }
          if (line == kHost) ++issued;
          lines[line].pop_front();
          moved = true;
        }
      }
      if (moved) continue;  // others may be ready now
      if (!waiting) return {now, times};
      CHECK(!running.empty());
      now += Advance(running, rates_);
    }
  }

 private:
  enum Resource { kNothing, kToDevice, kToHost, kCpu, kTime };
  static constexpr int kHost = kNumQueues, kLines = kNumQueues + 1;

  struct Operation {
    Resource uses = kNothing;
    double amount = 0;  // bytes or, of the CPU, values that are left
    double memory_bytes = 0;
    int64_t awaits = -1, mark = -1;
    int64_t after_host = 0;  // operations of the host before it was queued
  };

  void Add(int line, Operation operation) {
    if (line != kHost) operation.after_host = std::ssize(lines_[kHost]);
    lines_[line].push_back(operation);
  }
  void AwaitOn(int line, Event event) {
    if (records_[event] >= 0) Add(line, {.awaits = records_[event]});
  }

  // Until one of them is through; the time it takes.
  static double Advance(const std::vector<Operation*>& running, const Bandwidths& rates) {
    const auto share = [&](Resource resource, double rate) {
      const auto users = std::ranges::count_if(running, [&](const Operation* one) { return one->uses == resource; });
      return users == 0 ? 0 : rate / static_cast<double>(users);
    };
    double speeds[] = {0, share(kToDevice, rates.to_device), share(kToHost, rates.to_host),
                       share(kCpu, rates.cpu_parameters), 1};
    double of_copies = 0, of_cpu = 0;  // bytes a second of host memory
    for (const Operation* one : running) {
      (one->uses == kCpu ? of_cpu : of_copies) += speeds[one->uses] * one->memory_bytes / one->amount;
    }
    const double for_copies = std::min(1.0, rates.dram / of_copies);
    const double for_cpu = std::clamp((rates.dram - of_copies) / of_cpu, 0.0, 1.0);
    for (const Resource resource : {kToDevice, kToHost}) speeds[resource] *= for_copies;
    if (of_cpu > 0) speeds[kCpu] *= for_cpu;
    double seconds = std::numeric_limits<double>::infinity();
    for (const Operation* one : running) seconds = std::min(seconds, one->amount / speeds[one->uses]);
    for (Operation* const one : running) {
      const double passed = seconds * speeds[one->uses];
      one->memory_bytes *= std::max(0.0, 1 - passed / one->amount);
      one->amount = one->amount - passed < 1e-9 * one->amount ? 0 : one->amount - passed;
    }
    return seconds;
  }

  const Bandwidths rates_;
  std::deque<std::vector<char>> memory_;
  std::vector<int64_t> records_;  // the mark of each event's last record; −1: none
  int64_t marks_ = 0;
  std::array<std::deque<Operation>, kLines> lines_;
};

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

// On real threads, for what the ten thousand above cannot show: a race. Each is a test, so that two run at once.
class InterleavedUpdateOnThreads : public ::testing::TestWithParam<uint64_t> {};

TEST_P(InterleavedUpdateOnThreads, SchedulesWithRandomDelaysGiveTheSameBits) {
  constexpr uint64_t kSeeds = 200;
  core::ThreadTeam team(2);
  FakeDevice device(Runs::kThreads, 1);
  for (uint64_t seed = kSeeds * GetParam(); seed < kSeeds * (GetParam() + 1); ++seed) {
    ASSERT_EQ(RunCase(RandomCase(seed), &device, &team), "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(TwoThousand, InterleavedUpdateOnThreads, ::testing::Range<uint64_t>(0, 10));

// The plan's k beside every other, on machines that are played in virtual time.

constexpr int64_t kParameters = 48'000, kSubgroup = 1'000;  // times are a million times those of 48 billion

// A model on a device whose update is played.
class Played {
 public:
  Played(int64_t parameters, int64_t subgroup, int64_t k, const Bandwidths& rates)
      : parameters_(parameters),
        subgroup_(subgroup),
        device_(rates),
        state_(static_cast<size_t>(3 * parameters)),
        gradients_(static_cast<size_t>(parameters)),
        copy_(static_cast<size_t>(parameters)),
        backward_(device_.MakeEvent()) {
    const auto count = static_cast<size_t>(parameters);
    const std::span<float> all = state_;
    const SubgroupPlan plan{.parameters = parameters, .subgroup = subgroup, .k = k};
    update_ = *InterleavedUpdate::OnDevice({all.first(count), all.subspan(count, count), all.last(count)},
                                           {{parameters, true}}, plan, &team_, nullptr, &device_,
                                           {gradients_.data(), GradientType::kFloat32, copy_.data(), &pool_});
  }

  // The gradients of each subgroup take so long, from the model's end to its front.
  void Backward(double seconds) {
    for (int64_t end = parameters_; end > 0;) {
      const int64_t first = (end - 1) / subgroup_ * subgroup_;
      device_.Compute(Queue::kCompute, seconds);
      update_->GradientsReady(first, end - first);
      end = first;
    }
    Await(Queue::kCompute);
  }
  void Await(Queue queue) {
    device_.Record(backward_, queue);
    device_.AwaitOnHost(backward_);
  }

  double UpdateSeconds() {
    EXPECT_TRUE(update_->Step({}, 1).ok());
    EXPECT_TRUE(update_->Finish().ok());
    return update_->TakeSeconds().value_or(0);
  }

 private:
  const int64_t parameters_, subgroup_;
  TimedDevice device_;
  PinnedPool pool_{&device_};
  core::ThreadTeam team_{1};
  std::vector<float> state_, gradients_;
  std::vector<uint16_t> copy_;
  const Device::Event backward_;
  std::unique_ptr<InterleavedUpdate> update_;
};

double Measured(int64_t k, const Bandwidths& rates) {
  Played played(kParameters, kSubgroup, k, rates);
  played.Backward(0);
  played.Await(Queue::kGradients);  // as after a backward that takes longer than they do
  return played.UpdateSeconds();
}

struct Machine {
  const char* name;
  Bandwidths rates;
};

class TimedUpdateOf : public ::testing::TestWithParam<Machine> {};

TEST_P(TimedUpdateOf, TheChosenInterleaveIsWithinThreePercentOfTheBest) {
  const Bandwidths& rates = GetParam().rates;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k <= 48; ++k) best = std::min(best, Measured(k, rates));
  const SubgroupPlan plan = PlanSubgroups({.k = core::kAutoInterleave, .subgroup = kSubgroup}, kParameters, rates);
  const double chosen = Measured(plan.k, rates);
  EXPECT_LE(chosen, 1.03 * best) << "k " << core::InterleaveName(plan.k);
  EXPECT_NEAR(chosen, plan.predicted_s, 0.13 * plan.predicted_s);
}

constexpr Bandwidths kScaledH200 = {  // a value stands for 100,000
    .dram = 220e4,
    .to_device = 50e4,
    .to_host = 50e4,
    .cpu_parameters = 5e4};

TEST(TimedUpdate, OfTheDeviceAloneTakesAsLongAsItsStateOnTheBus) {
  constexpr int64_t kValues = 10'600;
  Played played(kValues, 1'000, 1, kScaledH200);
  played.Backward(0);
  EXPECT_NEAR(played.UpdateSeconds(), kValues * 12 / kScaledH200.to_device, 0.05);
}

// 1.06 billion parameters in subgroups of 100 million; a last micro-batch's backward of 44 ms, 84 ms of gradients on
// the bus.
TEST(TimedUpdate, TheCpuBeginsWithTheGradientsThatAreThere) {
  constexpr int64_t kValues = 10'600, kOne = 1'000;
  Played played(kValues, kOne, core::kAllOnCpu, kScaledH200);
  played.Backward(0.004);
  const double copy = 2 * kOne / kScaledH200.to_device;  // of the last subgroup, behind its update
  const double idle = played.UpdateSeconds() - copy - kValues / kScaledH200.cpu_parameters;
  std::printf("the CPU waits %.1f ms\n", 1e3 * idle);
  EXPECT_LE(idle, 0.002);  // front to back: 0.043
}

INSTANTIATE_TEST_SUITE_P(
    Machines, TimedUpdateOf,
    ::testing::Values(
        Machine{"four_a100_of_the_paper", {.dram = 134.5e9, .to_device = 25e9, .to_host = 25e9, .cpu_parameters = 9e9}},
        Machine{"h200", {.dram = 300e9, .to_device = 55e9, .to_host = 55e9, .cpu_parameters = 8e9}},
        Machine{"slow_bus", {.dram = 60e9, .to_device = 6e9, .to_host = 6e9, .cpu_parameters = 1.5e9}},
        Machine{"slow_cpu", {.dram = 100e9, .to_device = 20e9, .to_host = 20e9, .cpu_parameters = 1.2e9}},
        Machine{"coherent_link", {.dram = 450e9, .to_device = 350e9, .to_host = 250e9, .cpu_parameters = 12e9}}),
    [](const auto& info) { return info.param.name; });

void OnThisThread(int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work) { work(0, values); }

// The default again, for other tests.
class WalkTest : public ::testing::Test {
 protected:
  ~WalkTest() override { SetWalk({}); }
};

TEST_F(WalkTest, NoWayThroughMemoryChangesABit) {
  constexpr int64_t kSize = 70'003;
  std::vector<float> g(kSize);
  for (int64_t i = 0; i < kSize; ++i) g[static_cast<size_t>(i)] = 1e-3f * static_cast<float>(i % 997);
  std::vector<std::vector<float>> parameters;
  std::vector<std::vector<uint16_t>> copies;
  for (const AdamWWalk walk : {AdamWWalk{true, true}, {false, true}, {true, false}, {false, false}}) {
    SetWalk(walk);
    EXPECT_EQ(CurrentWalk(), walk);
    std::vector<float> m(kSize), v(kSize), p(kSize, 1.0f);
    std::vector<uint16_t> copy(kSize);
    for (int64_t t = 1; t <= 3; ++t) {
      AdamWStep(MakeConstants({}, t), {.gradient = g.data(),
                                       .first_moment = m.data(),
                                       .second_moment = v.data(),
                                       .parameters = p.data(),
                                       .bfloat16_copy = copy.data(),
                                       .count = kSize});
    }
    parameters.push_back(p);
    copies.push_back(copy);
    EXPECT_EQ(parameters.back(), parameters.front());
    EXPECT_EQ(copies.back(), copies.front());
  }
}

TEST_F(WalkTest, IsMeasuredOnceForAProcessorAndItsThreadsAndKeptBesideTheBandwidths) {
  const TemporaryFolder folder;
  const std::string path = folder / "bandwidths.json";
  nlohmann::json kept = ReadCalibrations(path);
  kept["machines"]["another"] = {{"dram", 1.0}};
  ASSERT_EQ(WriteCalibrations(path, kept), "");
  int passes = 0;
  const auto counted = [&](int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work) {
    ++passes;
    OnThisThread(values, work);
  };
  ChooseWalk(kLeastBeyondCaches, 1, counted, path);
  EXPECT_GT(passes, 0);
  const AdamWWalk chosen = CurrentWalk();
  const int measured = passes;
  SetWalk({.fetches_ahead = !chosen.fetches_ahead, .streams_copy = !chosen.streams_copy});
  ChooseWalk(kLeastBeyondCaches, 1, counted, path);
  EXPECT_EQ(passes, measured);
  EXPECT_EQ(CurrentWalk(), chosen);
  kept = ReadCalibrations(path);
  EXPECT_EQ(kept["machines"]["another"]["dram"], 1.0);
  ChooseWalk(kLeastBeyondCaches, 2, counted, path);  // other threads
  EXPECT_EQ(passes, 2 * measured);
  kept["walks"] = "none";
  ASSERT_EQ(WriteCalibrations(path, kept), "");
  ChooseWalk(kLeastBeyondCaches, 1, counted, path);
  EXPECT_EQ(passes, 3 * measured);
}

TEST_F(WalkTest, OfAStateThatCachesHoldNothingIsLearned) {
  int passes = 0;
  ChooseWalk(
      kLeastBeyondCaches - 1, 1, [&](int64_t, absl::FunctionRef<void(int64_t, int64_t)>) { ++passes; }, "");
  EXPECT_EQ(passes, 0);
  EXPECT_EQ(CurrentWalk(), AdamWWalk());
}

}  // namespace
}  // namespace causeway::offload
