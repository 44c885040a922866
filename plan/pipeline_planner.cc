#include "plan/pipeline_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "plan/pipeline_check.h"
#include "plan/pipeline_generators.h"
#include "plan/pipeline_search.h"

namespace causeway::plan {
namespace {

constexpr double kJitter = 0.1;
constexpr uint64_t kSeed = 1;

// Parameters with what comes with them, of each device; of every copy.
std::vector<double> WeightBytes(const PipelineSchedule& schedule, const std::vector<StageLayers>& split,
                                const PipelineCosts& costs) {
  std::vector<double> bytes(static_cast<size_t>(schedule.devices));
  for (const std::vector<int>& copy : schedule.place) {
    for (size_t s = 0; s < copy.size(); ++s) {
      bytes[static_cast<size_t>(copy[s])] += costs.parameter_bytes * ParametersOfStage(costs, split[s]);
    }
  }
  return bytes;
}

// The maximum that a device holds: parameters, and the values that layers keep from F to W.
double PeakBytes(const PipelineSchedule& schedule, const std::vector<StageLayers>& split, const PipelineCosts& costs) {
  double peak = 0;
  const std::vector<double> weights = WeightBytes(schedule, split, costs);
  for (size_t d = 0; d < schedule.lists.size(); ++d) {
    double live = weights[d];
    peak = std::max(peak, live);
    for (const ScheduleStep& step : schedule.lists[d]) {
      for (const Operation* o : {&step.first, step.second ? &*step.second : nullptr}) {
        if (o == nullptr) continue;
        const StageLayers& stage = split[static_cast<size_t>(o->stage)];
        const double bytes = costs.layer_bytes * (stage.last - stage.first + 1);
        if (o->kind == OperationKind::kForward) live += bytes;
        if (o->kind == OperationKind::kBackward || o->kind == OperationKind::kWeight) live -= bytes;
        peak = std::max(peak, live);
      }
    }
  }
  return peak;
}

class Planner {
 public:
  explicit Planner(const PlannerInput& input) : input_(input) {}

  absl::StatusOr<std::vector<PlannedPipeline>> Plan();

 private:
  std::vector<StageLayers> Balanced(const PipelineSchedule& schedule, std::vector<StageLayers> split) const;
  void Offer(const std::string& name, const PipelineSchedule& schedule, const std::vector<StageLayers>& given);
  void OfferGenerators();
  void OfferSearched();
  void OfferImproved();
  std::optional<int> CapOf(const std::vector<StageLayers>& split) const;

  const PlannerInput input_;
  std::vector<PlannedPipeline> fitting_;
  double least_bytes_ = std::numeric_limits<double>::infinity();
};

// Single layers change over to the stage beside as long as the step becomes shorter: a device may have several stages.
std::vector<StageLayers> Planner::Balanced(const PipelineSchedule& schedule, std::vector<StageLayers> split) const {
  const auto makespan = [&] { return Play(schedule, PlannedTimes(input_, split))->makespan; };
  int64_t best = makespan();
  for (bool better = true; better;) {
    better = false;
    for (size_t s = 0; s + 1 < split.size(); ++s) {
      for (const int step : {1, -1}) {  // a layer to the stage before, or from it
        const std::vector<StageLayers> before = split;
        split[s].last += step;
        split[s + 1].first += step;
        const bool whole = split[s].last >= split[s].first && split[s + 1].last >= split[s + 1].first;
        if (const int64_t now = whole ? makespan() : best; now < best) {
          best = now;
          better = true;
        } else {
          split = before;
        }
      }
    }
  }
  return split;
}

void Planner::Offer(const std::string& name, const PipelineSchedule& schedule, const std::vector<StageLayers>& given) {
  const std::vector<StageLayers> split = Balanced(schedule, given);
  const PipelineTimes times = PlannedTimes(input_, split);
  const auto played = Play(schedule, times);
  CHECK(played.ok());
  PlannedPipeline planned{.name = name,
                          .file = {.schedule = schedule, .split = split},
                          .times = times,
                          .makespan = played->makespan,
                          .peak_bytes = PeakBytes(schedule, split, input_.costs),
                          .messages = played->messages};
  least_bytes_ = std::min(least_bytes_, planned.peak_bytes);
  if (input_.memory_bytes > 0 && planned.peak_bytes > input_.memory_bytes) return;
  for (int d = 0; d < schedule.devices; ++d) {
    planned.worst_bubble =
        std::max(planned.worst_bubble,
                 static_cast<double>(played->bubble(d)) / static_cast<double>(std::max<int64_t>(1, played->makespan)));
  }
  planned.p90 = MakespanP90(schedule, times, kSeed);
  fitting_.push_back(std::move(planned));
}

void Planner::OfferGenerators() {
  for (const std::string& name : GeneratorNames()) {
    const bool chunked = HasChunks(name);
    std::vector<int> units = {0};
    for (int unit = 2 * input_.devices; name == "zeropp" && unit < 2 * input_.micro_batches; unit *= 2) {
      units.push_back(std::min(unit, input_.micro_batches));  // larger ones have smaller bubbles, and hold more
    }
    for (const int chunks : chunked ? std::vector{2, 3, 4} : std::vector{1}) {
      for (const int unit : units) {
        const auto schedule = Generate(
            name, {.devices = input_.devices, .micro_batches = input_.micro_batches, .chunks = chunks, .unit = unit});
        if (!schedule.ok()) continue;
        const auto split = SplitLayers(input_.costs, schedule->stages);
        const std::string of_unit = unit == 0 ? "" : absl::StrCat(" unit ", unit);
        if (split.ok()) Offer(chunked ? absl::StrCat(name, " ", chunks, of_unit) : name, *schedule, *split);
      }
    }
  }
}

// (stage, micro-batch)s that a device has room for, in a line or a V; 0: any, none: not one.
std::optional<int> Planner::CapOf(const std::vector<StageLayers>& split) const {
  const auto stages = static_cast<int>(split.size());
  std::vector<double> weights(static_cast<size_t>(input_.devices));
  int largest = 1;
  for (int s = 0; s < stages; ++s) {
    const StageLayers& stage = split[static_cast<size_t>(s)];
    weights[static_cast<size_t>(std::min(s, 2 * input_.devices - 1 - s))] +=
        input_.costs.parameter_bytes * ParametersOfStage(input_.costs, stage);
    largest = std::max(largest, stage.last - stage.first + 1);
  }
  const double chunk = input_.costs.layer_bytes * largest;
  if (input_.memory_bytes == 0 || chunk == 0) return 0;
  const auto cap = static_cast<int>((input_.memory_bytes - *std::ranges::max_element(weights)) / chunk);
  return cap < 1 ? std::nullopt : std::optional(cap);
}

// The best so far, with neighbors in its lists swapped, if that is better still.
void Planner::OfferImproved() {
  if (fitting_.empty()) return;
  const PlannedPipeline best = *std::ranges::min_element(fitting_, {}, &PlannedPipeline::p90);
  const auto played = Play(best.file.schedule, best.times);
  CHECK(played.ok());
  const int cap = *std::ranges::max_element(played->peak_chunks);
  const PipelineSchedule improved = Improved(best.file.schedule, best.times, cap);
  if (improved != best.file.schedule) Offer(best.name + " +", improved, best.file.split);
}

void Planner::OfferSearched() {
  for (const bool v_shape : {false, true}) {
    const int stages = v_shape ? 2 * input_.devices : input_.devices;
    const auto split = SplitLayers(input_.costs, stages);
    if (!split.ok()) continue;
    const std::optional<int> cap = CapOf(*split);
    if (!cap) continue;
    const PipelineTimes times = PlannedTimes(input_, *split);
    const int64_t forward = times.stages.front().forward;
    std::optional<std::pair<int64_t, PipelineSchedule>> best;
    for (const int64_t patience : {int64_t{0}, forward / 4, forward / 2, forward}) {
      for (const bool forward_first : {false, true}) {
        auto schedule =
            GreedySchedule({input_.devices, input_.micro_batches, v_shape, *cap, patience, forward_first}, times);
        if (!schedule.ok()) continue;
        const auto played = Play(*schedule, times);
        CHECK(played.ok());
        if (!best || played->makespan < best->first) best = {played->makespan, *std::move(schedule)};
      }
    }
    if (best) Offer(v_shape ? "searched V" : "searched line", best->second, *split);
  }
}

absl::StatusOr<std::vector<PlannedPipeline>> Planner::Plan() {
  OfferGenerators();
  OfferSearched();
  OfferImproved();
  if (fitting_.empty() && std::isinf(least_bytes_)) {
    return absl::InvalidArgumentError(absl::StrCat("expected at least a layer for each device, got ",
                                                   input_.costs.layers, " layers for ", input_.devices, " devices"));
  }
  if (fitting_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("expected memory of a device for parameters and for what layers keep, of which the smallest "
                        "schedule needs %.3g GB, got %.3g GB",
                        least_bytes_ / 1e9, input_.memory_bytes / 1e9));
  }
  std::ranges::stable_sort(fitting_, {}, &PlannedPipeline::p90);
  return fitting_;
}

}  // namespace

PipelineTimes PlannedTimes(const PlannerInput& input, const std::vector<StageLayers>& split) {
  PipelineTimes times{
      .message_ns = input.latency_ns, .bytes = input.costs.message_bytes, .bytes_per_s = input.bytes_per_s};
  for (const StageLayers& stage : split) {
    times.stages.push_back(TimesOfStage(input.costs, stage));
    times.reduce_bytes.push_back(input.costs.gradient_bytes * ParametersOfStage(input.costs, stage));
  }
  return times;
}

absl::StatusOr<std::vector<PlannedPipeline>> PlanPipeline(const PlannerInput& input) { return Planner(input).Plan(); }

int64_t MakespanP90(const PipelineSchedule& schedule, const PipelineTimes& times, uint64_t first_seed, int draws) {
  std::vector<int64_t> makespans;
  PipelineTimes drawn = times;
  drawn.jitter = kJitter;
  for (int i = 0; i < draws; ++i) {
    drawn.seed = first_seed + static_cast<uint64_t>(i);
    const auto played = Play(schedule, drawn);
    CHECK(played.ok());
    makespans.push_back(played->makespan);
  }
  const auto at = makespans.begin() + (9 * std::ssize(makespans)) / 10;
  std::ranges::nth_element(makespans, at);
  return *at;
}

}  // namespace causeway::plan
