#include "plan/pipeline_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

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

int64_t TotalOf(const StageTimes& times) { return times.forward + times.input + times.weight; }

StageTimes Sum(const PipelineCosts& costs, const StageLayers& stage) {
  const int64_t count = stage.last - stage.first + 1;
  StageTimes times{
      .forward = count * costs.layer.forward, .input = count * costs.layer.input, .weight = count * costs.layer.weight};
  const auto add = [&](bool there, const StageTimes& part) {
    if (!there) return;
    times.forward += part.forward;
    times.input += part.input;
    times.weight += part.weight;
  };
  add(stage.embedding, costs.embedding);
  add(stage.head, costs.head);
  return times;
}

// The most that a device keeps, from F to W.
double PeakBytes(const PipelineSchedule& schedule, const std::vector<StageLayers>& split, double layer_bytes) {
  double peak = 0;
  for (const auto& list : schedule.lists) {
    double live = 0;
    for (const ScheduleStep& step : list) {
      for (const Operation* o : {&step.first, step.second ? &*step.second : nullptr}) {
        if (o == nullptr) continue;
        const StageLayers& stage = split[static_cast<size_t>(o->stage)];
        const double bytes = layer_bytes * (stage.last - stage.first + 1);
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
  PipelineTimes TimesOf(const std::vector<StageLayers>& split) const;
  std::vector<StageLayers> Balanced(const PipelineSchedule& schedule, std::vector<StageLayers> split) const;
  void Offer(const std::string& name, const PipelineSchedule& schedule, const std::vector<StageLayers>& given);
  void OfferGenerators();
  void OfferSearched();

  const PlannerInput input_;
  std::vector<PlannedPipeline> fitting_;
  double least_bytes_ = std::numeric_limits<double>::infinity();
};

PipelineTimes Planner::TimesOf(const std::vector<StageLayers>& split) const {
  PipelineTimes times{
      .message_ns = input_.latency_ns, .bytes = input_.costs.message_bytes, .bytes_per_s = input_.bytes_per_s};
  for (const StageLayers& stage : split) times.stages.push_back(Sum(input_.costs, stage));
  return times;
}

// Single layers change over to the stage beside as long as the step becomes shorter: a device may have several stages.
std::vector<StageLayers> Planner::Balanced(const PipelineSchedule& schedule, std::vector<StageLayers> split) const {
  const auto makespan = [&] { return Play(schedule, TimesOf(split))->makespan; };
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
  const PipelineTimes times = TimesOf(split);
  const auto played = Play(schedule, times);
  CHECK(played.ok());
  PlannedPipeline planned{.name = name,
                          .file = {.schedule = schedule, .split = split},
                          .times = times,
                          .makespan = played->makespan,
                          .peak_bytes = PeakBytes(schedule, split, input_.costs.layer_bytes),
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
    const bool chunked = name == "interleaved" || name == "zeropp";
    for (const int chunks : chunked ? std::vector{2, 3, 4} : std::vector{1}) {
      const auto schedule = Generate(
          name, {.devices = input_.devices, .micro_batches = input_.micro_batches, .chunks = std::max(1, chunks)});
      if (!schedule.ok()) continue;
      const auto split = SplitLayers(input_.costs, schedule->stages);
      if (split.ok()) Offer(chunked ? absl::StrCat(name, " ", chunks) : name, *schedule, *split);
    }
  }
}

void Planner::OfferSearched() {
  for (const bool v_shape : {false, true}) {
    const int stages = v_shape ? 2 * input_.devices : input_.devices;
    const auto split = SplitLayers(input_.costs, stages);
    if (!split.ok()) continue;
    int largest = 1;
    for (const StageLayers& stage : *split) largest = std::max(largest, stage.last - stage.first + 1);
    const double chunk = input_.costs.layer_bytes * largest;
    const int cap = input_.memory_bytes > 0 && chunk > 0 ? static_cast<int>(input_.memory_bytes / chunk) : 0;
    if (input_.memory_bytes > 0 && chunk > 0 && cap == 0) continue;
    const PipelineTimes times = TimesOf(*split);
    const int64_t forward = times.stages.front().forward;
    std::optional<std::pair<int64_t, PipelineSchedule>> best;
    for (const int64_t patience : {int64_t{0}, forward / 4, forward / 2, forward}) {
      for (const bool forward_first : {false, true}) {
        auto schedule =
            GreedySchedule({input_.devices, input_.micro_batches, v_shape, cap, patience, forward_first}, times);
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
  if (fitting_.empty() && std::isinf(least_bytes_)) {
    return absl::InvalidArgumentError(absl::StrCat("expected at least a layer for each device, got ",
                                                   input_.costs.layers, " layers for ", input_.devices, " devices"));
  }
  if (fitting_.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "expected memory for what layers keep on a device, of which the smallest schedule needs %.3g GB, got %.3g GB",
        least_bytes_ / 1e9, input_.memory_bytes / 1e9));
  }
  std::ranges::stable_sort(fitting_, {}, &PlannedPipeline::p90);
  return fitting_;
}

}  // namespace

absl::StatusOr<std::vector<StageLayers>> SplitLayers(const PipelineCosts& costs, int stages) {
  const int layers = costs.layers;
  if (stages < 1 || layers < stages) {
    return absl::InvalidArgumentError(absl::StrCat("expected a layer for each of ", stages, " stages, got ", layers));
  }
  const int64_t one = TotalOf(costs.layer);
  const auto cost = [&](int stage, int count) {
    return count * one + (stage == 0 ? TotalOf(costs.embedding) : 0) + (stage + 1 == stages ? TotalOf(costs.head) : 0);
  };
  // best[s][l]: the longest of the first s stages, which have l layers.
  const int64_t never = std::numeric_limits<int64_t>::max();
  std::vector best(static_cast<size_t>(stages) + 1, std::vector<int64_t>(static_cast<size_t>(layers) + 1, never));
  std::vector last(static_cast<size_t>(stages) + 1, std::vector<int>(static_cast<size_t>(layers) + 1));
  best[0][0] = 0;
  for (int s = 1; s <= stages; ++s) {
    for (int l = s; l <= layers; ++l) {
      for (int count = 1; count <= l; ++count) {
        const int64_t before = best[static_cast<size_t>(s) - 1][static_cast<size_t>(l - count)];
        if (before == never) continue;
        const int64_t longest = std::max(before, cost(s - 1, count));
        if (longest >= best[static_cast<size_t>(s)][static_cast<size_t>(l)]) continue;
        best[static_cast<size_t>(s)][static_cast<size_t>(l)] = longest;
        last[static_cast<size_t>(s)][static_cast<size_t>(l)] = count;
      }
    }
  }
  std::vector<StageLayers> split(static_cast<size_t>(stages));
  for (int s = stages, l = layers; s >= 1; --s) {
    const int count = last[static_cast<size_t>(s)][static_cast<size_t>(l)];
    split[static_cast<size_t>(s) - 1] = {.first = l - count, .last = l - 1, .embedding = s == 1, .head = s == stages};
    l -= count;
  }
  return split;
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

absl::StatusOr<PipelineCosts> ReadPipelineCosts(const std::string& text, const std::string& name) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  absl::Status bad;
  const auto number = [&](const nlohmann::json& object, const std::string& key, const std::string& path, double least) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (object.is_object() && found != object.end() && found->is_number() && found->get<double>() >= least) {
      return found->get<double>();
    }
    const std::string got = object.is_object() && found != object.end() ? found->dump() : "none";
    if (bad.ok()) {
      bad = absl::InvalidArgumentError(
          absl::StrCat(name, ": ", path, key, ": expected a number from ", least, " on, got ", got));
    }
    return 0.0;
  };
  const auto times = [&](const std::string& part) {
    const auto object = json.is_object() && json.contains(part) ? json[part] : nlohmann::json();
    const auto ns = [&](const char* key) { return std::llround(1e3 * number(object, key, part + ".", 0)); };
    return StageTimes{.forward = ns("forward_us"), .input = ns("input_us"), .weight = ns("weight_us")};
  };
  PipelineCosts costs{.layers = static_cast<int>(number(json, "layers", "", 1)),
                      .layer = times("layer"),
                      .embedding = times("embedding"),
                      .head = times("head"),
                      .layer_bytes = number(json, "layer_bytes", "", 0),
                      .message_bytes = number(json, "message_bytes", "", 0)};
  if (!bad.ok()) return bad;
  return costs;
}

}  // namespace causeway::plan
