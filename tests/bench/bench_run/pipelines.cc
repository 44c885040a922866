// Pipelines whose operations wait instead of computing: how long the executor takes, against the simulator. Devices are
// threads; messages, and the gradients of two copies, take time on links between them. Prints a line of JSON for each
// schedule: its makespan, measured and simulated.
#include <sys/prctl.h>

#include <algorithm>
#include <barrier>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/clock.h"
#include "core/thread.h"
#include "plan/pipeline_generators.h"
#include "plan/pipeline_search.h"
#include "plan/pipeline_time.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/worker/ranks/thread_wire.h"
#include "worker/parallel/gradient_exchange.h"
#include "worker/parallel/pipeline_executor.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/ranks/ordered_collectives.h"

namespace causeway::worker {
namespace {

constexpr double kTimeoutS = 60;
constexpr int64_t kMessageValues = 8;  // no more than travels with its heading
constexpr int64_t kGradientValues = 4096;

// Waits as long as the simulator says that an operation takes.
class TimedStages final : public StageRunner {
 public:
  explicit TimedStages(const plan::PipelineTimes& times) : times_(times) {}

  void Forward(const plan::Operation& operation, std::span<const float>, std::span<float>) override {
    Wait(TimesOf(operation).forward);
  }
  void Backward(const plan::Operation& operation, std::span<const float>, std::span<float>) override {
    const plan::StageTimes& times = TimesOf(operation);
    Wait(times.backward > 0 ? times.backward : times.input + times.weight);
  }
  void BackwardInput(const plan::Operation& operation, std::span<const float>, std::span<float>) override {
    Wait(TimesOf(operation).input);
  }
  void BackwardWeight(const plan::Operation& operation) override { Wait(TimesOf(operation).weight); }

 private:
  const plan::StageTimes& TimesOf(const plan::Operation& operation) const {
    return times_.stages[static_cast<size_t>(operation.stage)];
  }
  static void Wait(int64_t nanoseconds) {
    core::SleepUntil(core::SystemClock().Now() + std::chrono::nanoseconds(nanoseconds));
  }

  const plan::PipelineTimes& times_;
};

// Nothing but gradients to reduce.
class ReducedTensors final : public StageTensors {
 public:
  explicit ReducedTensors(GradientExchange* exchange) : exchange_(exchange) {}
  void Reduce(int stage) override { exchange_->Reduce(stage); }

 private:
  GradientExchange* const exchange_;
};

// The makespan of the fastest step, in seconds.
double Measure(const plan::PipelineSchedule& schedule, const plan::PipelineTimes& times) {
  const auto devices = static_cast<size_t>(schedule.devices);
  const plan::PipelineFile file{.schedule = schedule};
  const PipelinePrograms programs = *CompilePipeline(schedule);
  // An all-reduce of two ranks has three messages, one behind the other, where the simulator counts two.
  const double latency_s = 1e-9 * static_cast<double>(times.message_ns);
  ThreadRanks message_ranks(schedule.devices, {.latency_s = latency_s});
  ThreadRanks gradient_ranks(schedule.devices, {.latency_s = 2 * latency_s / 3, .bytes_per_s = times.bytes_per_s});
  PipelinePlaces places;
  places.manifest.resize(static_cast<size_t>(schedule.stages));
  for (int s = 0; s < schedule.stages; ++s) places.stages.push_back({s});
  std::vector<double> ends(devices);
  double fastest = 0;
  core::Clock::TimePoint start;
  std::barrier begin(schedule.devices, [&]() noexcept { start = core::SystemClock().Now(); });
  std::barrier end(schedule.devices, [&]() noexcept {
    const double makespan = *std::ranges::max_element(ends);
    fastest = fastest == 0 ? makespan : std::min(fastest, makespan);
  });
  std::vector<core::Thread> threads;
  for (int rank = 0; rank < schedule.devices; ++rank) {
    threads.emplace_back([&, rank] {
      prctl(PR_SET_TIMERSLACK, 1);
      const auto at = static_cast<size_t>(rank);
      OrderedCollectives messages(message_ranks.wire(rank)), gradients(gradient_ranks.wire(rank));
      const auto links =
          PipelineLinks::Open({.values = &messages, .timeout_s = kTimeoutS}, programs, 1, kMessageValues);
      CHECK(links.ok());
      std::vector<std::vector<float>> values(places.stages.size());
      for (size_t s = 0; s < values.size(); ++s) {
        if (!times.reduce_bytes.empty()) values[s].resize(static_cast<size_t>(times.reduce_bytes[s]) / sizeof(float));
      }
      const auto exchange = GradientExchange::Open({.values = &gradients, .timeout_s = kTimeoutS}, file, places,
                                                   MutableTensors(values.begin(), values.end()), {});
      CHECK(exchange.ok());
      TimedStages stages(times);
      ReducedTensors tensors(exchange->get());
      for (int step = 0; step < bench::Given<int>("steps"); ++step) {
        std::vector<PipelineSpan> spans;
        begin.arrive_and_wait();
        (*exchange)->Begin(/*sums=*/true);
        CHECK(RunPipelineStep(programs.devices[at], **links, tensors, stages, spans).ok());
        CHECK((*exchange)->Finish().ok());
        ends[at] = core::SystemClock().SecondsSince(start);
        end.arrive_and_wait();
      }
    });
  }
  for (core::Thread& thread : threads) thread.Join();
  return fastest;
}

void Time(const std::string& part, const std::string& name, const plan::PipelineSchedule& schedule,
          const plan::PipelineTimes& times, double latency) {
  const double measured = Measure(schedule, times);
  const double simulated = 1e-9 * static_cast<double>(plan::Play(schedule, times)->makespan);
  bench::Print({{"part", part},
                {"schedule", name},
                {"latency_forwards", latency},
                {"measured_s", measured},
                {"simulated_s", simulated},
                {"ratio", measured / simulated}});
}

plan::GeneratorInput Input() {
  return {.devices = bench::Given<int>("devices"), .micro_batches = bench::Given<int>("micro_batches")};
}

int64_t Forward() { return static_cast<int64_t>(1e6 * bench::Given<double>("forward_ms")); }

void Generators(double latency) {
  for (const std::string& name : plan::GeneratorNames()) {
    const plan::PipelineSchedule schedule = *plan::Generate(name, Input());
    plan::PipelineTimes times = plan::UnitTimes(schedule, Forward() * schedule.devices / schedule.stages);
    times.message_ns = static_cast<int64_t>(latency * static_cast<double>(Forward()));
    Time("generators", name, schedule, times, latency);
  }
}

// Gradients of two copies: at the end, as soon as they can, and in no time.
void Copies(double latency) {
  for (const std::string name : {"dualpipe", "bitpipe"}) {
    for (const std::string when : {"none", "eager", "late"}) {
      plan::GeneratorInput input = Input();
      input.late_sync = when == "late";
      const plan::PipelineSchedule schedule = *plan::Generate(name, input);
      plan::PipelineTimes times = plan::UnitTimes(schedule, Forward() * schedule.devices / schedule.stages);
      times.message_ns = static_cast<int64_t>(latency * static_cast<double>(Forward()));
      if (when != "none") {  // a stage's take as long as a forward
        times.reduce_bytes.assign(times.stages.size(), kGradientValues * sizeof(float));
        times.bytes_per_s = kGradientValues * sizeof(float) / (1e-9 * static_cast<double>(Forward()));
      }
      Time("copies", name + " " + when, schedule, times, latency);
    }
  }
}

// Two stages on each device, in a V, within twice the memory of 1f1b; one copy of the weights.
void Searched(double latency) {
  plan::PipelineTimes times;
  const int64_t part = Forward() / 2;
  times.stages.assign(2 * static_cast<size_t>(Input().devices), {.forward = part, .input = part, .weight = part});
  times.message_ns = static_cast<int64_t>(latency * static_cast<double>(Forward()));
  const auto schedule = plan::GreedySchedule(
      {.devices = Input().devices, .micro_batches = Input().micro_batches, .v_shape = true, .cap = 4 * Input().devices},
      times);
  CHECK(schedule.ok());
  Time("searched", "searched V", *schedule, times, latency);
}

void Run() {
  for (const double latency : {0.0, 0.25}) {
    Generators(latency);
    Copies(latency);
    Searched(latency);
  }
}

}  // namespace
}  // namespace causeway::worker

namespace causeway::bench {

absl::Status Pipelines() {
  worker::Run();
  return absl::OkStatus();
}

}  // namespace causeway::bench
