#include "plan/what_if.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "plan/pipeline_trace.h"

namespace causeway::plan {
namespace {

constexpr char kFixed[] = "fixed", kProcessor[] = "cpu";
constexpr double kMostLanes = 1e6;
constexpr double kFastShare = 0.1;  // of a link's operations are as fast as it is, or faster

double FactorOf(const Factors& factors, const std::string& resource) {
  const auto found = factors.find(resource);
  return found == factors.end() ? 1 : found->second;
}

// The binding resource, and its duration in the model's own units; "fixed": 0.
std::pair<std::string, double> Binding(const Work& work, const WorkOperation& operation, const Factors& factors) {
  std::pair<std::string, double> slowest(kFixed, 0);
  for (const auto& [resource, amount] : operation.uses) {
    const auto speed = work.speeds.find(resource);
    if (speed == work.speeds.end()) continue;
    const double seconds = amount / (speed->second * FactorOf(factors, resource));
    if (seconds > slowest.second) slowest = {resource, seconds};
  }
  return slowest;
}

struct Placed {
  double begin = 0, end = 0;
  std::string binds;
  int before = -1;  // the operation whose end let this one begin; −1: the lane's beginning
};

// Lanes run their own operations in order; the step ends when all have.
std::vector<Placed> Place(const Work& work, const std::vector<WorkOperation>& step, const Factors& factors) {
  std::vector<Placed> placed;
  std::map<int, int> last_of_lane;
  for (const WorkOperation& operation : step) {
    const auto before = last_of_lane.find(operation.lane);
    Placed here{.before = before == last_of_lane.end() ? -1 : before->second};
    here.begin = operation.gap_s + (here.before < 0 ? 0 : placed[static_cast<size_t>(here.before)].end);
    const auto [binds, seconds] = Binding(work, operation, factors);
    const double as_measured = Binding(work, operation, {}).second;
    here.binds = binds;
    here.end = here.begin + (as_measured > 0 ? operation.seconds * seconds / as_measured : operation.seconds);
    last_of_lane[operation.lane] = static_cast<int>(placed.size());
    placed.push_back(here);
  }
  return placed;
}

// The link that an operation is all of; empty: none.
std::string LinkOf(const WorkOperation& operation) {
  const bool link = operation.uses.size() == 1 && operation.uses.begin()->first.starts_with("link ");
  return link && operation.uses.begin()->second > 0 ? operation.uses.begin()->first : "";
}

// Separates waiting for other ranks from the links' own time.
void PartWaits(Work& work) {
  std::map<std::string, std::vector<double>> speeds;
  for (const std::vector<WorkOperation>& step : work.steps) {
    for (const WorkOperation& operation : step) {
      const std::string link = LinkOf(operation);
      if (link.empty() || !(operation.seconds > 0)) continue;
      speeds[link].push_back(operation.uses.at(link) / operation.seconds);
    }
  }
  for (auto& [link, of] : speeds) {
    const auto at = of.begin() + static_cast<int64_t>(kFastShare * static_cast<double>(of.size() - 1));
    std::ranges::nth_element(of, at, std::greater());
    work.speeds[link] = *at;
  }
  if (!work.speeds.contains(kProcessor)) return;
  for (std::vector<WorkOperation>& step : work.steps) {
    std::vector<WorkOperation> parted;
    for (WorkOperation& operation : step) {
      const std::string link = LinkOf(operation);
      const double seconds = link.empty() ? operation.seconds : operation.uses.at(link) / work.speeds[link];
      if (const double waits = operation.seconds - seconds; waits > 0) {
        parted.push_back({.name = "waits",
                          .lane = operation.lane,
                          .seconds = waits,
                          .gap_s = std::exchange(operation.gap_s, 0),
                          .uses = {{kProcessor, waits * work.speeds[kProcessor]}}});
        operation.seconds = seconds;
      }
      parted.push_back(std::move(operation));
    }
    step = std::move(parted);
  }
}

}  // namespace

std::string WhatIf::Binds() const {
  const auto largest = std::ranges::max_element(shares, {}, [](const auto& share) { return share.second; });
  return largest == shares.end() ? kFixed : largest->first;
}

absl::StatusOr<WhatIf> Simulate(const Work& work, const Factors& factors) {
  for (const auto& [resource, factor] : factors) {
    if (!work.speeds.contains(resource)) {
      const std::string known =
          absl::StrJoin(work.speeds, ", ", [](std::string* out, const auto& speed) { out->append(speed.first); });
      return absl::InvalidArgumentError(absl::StrCat("expected a resource of the trace, ", known, ", got ", resource));
    }
    if (!(factor > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(resource, ": expected a factor above 0, got ", factor));
    }
  }
  WhatIf result;
  double all = 0;
  for (const std::vector<WorkOperation>& step : work.steps) {
    const std::vector<Placed> placed = Place(work, step, factors);
    const auto last = std::ranges::max_element(placed, {}, &Placed::end);
    if (last == placed.end()) continue;
    all += last->end;
    for (int at = static_cast<int>(last - placed.begin()); at >= 0; at = placed[static_cast<size_t>(at)].before) {
      const Placed& here = placed[static_cast<size_t>(at)];
      result.shares[here.binds] += here.end - here.begin;
      result.shares[kFixed] += step[static_cast<size_t>(at)].gap_s;
    }
  }
  for (auto& [resource, share] : result.shares) share = all > 0 ? share / all : 0;
  result.seconds_per_step = work.steps.empty() ? 0 : all / static_cast<double>(work.steps.size());
  return result;
}

std::vector<Gain> GainsOfEach(const Work& work, double factor) {
  const double now = Simulate(work, {})->seconds_per_step;
  std::vector<Gain> gains;
  for (const auto& [resource, speed] : work.speeds) {
    const WhatIf faster = *Simulate(work, {{resource, factor}});
    gains.push_back({resource, now / faster.seconds_per_step, faster.Binds()});
  }
  std::ranges::stable_sort(gains, std::greater(), &Gain::speedup);
  return gains;
}

absl::StatusOr<Work> ReadWork(const std::string& text, const std::string& name) {
  Work work;
  std::map<int64_t, std::vector<std::pair<double, WorkOperation>>> steps;  // by number: begin in seconds
  RETURN_IF_ERROR(ForEachTraceEvent(text, name, [&](const nlohmann::json& event, const BadEvent& bad) -> absl::Status {
    if (!event.contains("name") || !event.contains("args") || !event["args"].is_object()) {
      return bad("a trace event with name and args");
    }
    if (event["name"] == "resources") {
      for (const auto& [resource, speed] : event["args"].items()) {
        if (!HasNumber(event["args"], resource.c_str(), kMostAmount) || speed.get<double>() <= 0) {
          return bad("speeds above 0 of resources");
        }
        work.speeds[resource] = speed.get<double>();
      }
      return absl::OkStatus();
    }
    const nlohmann::json& args = event["args"];
    if (!HasNumber(event, "ts", kMostMicroseconds) || !HasNumber(event, "dur", kMostMicroseconds) ||
        !HasNumber(event, "tid", kMostLanes) || !event["name"].is_string() || !args.contains("step") ||
        !args["step"].is_number_integer() || !args.contains("uses") || !args["uses"].is_object()) {
      return bad("an event with ts, dur, tid, args.step and args.uses");
    }
    WorkOperation operation{.name = event["name"].get<std::string>(),
                            .lane = event["tid"].get<int>(),
                            .seconds = 1e-6 * event["dur"].get<double>(),
                            .uses = {}};
    for (const auto& [resource, amount] : args["uses"].items()) {
      if (!HasNumber(args["uses"], resource.c_str(), kMostAmount)) return bad("amounts of 0 or more in args.uses");
      operation.uses[resource] = amount.get<double>();
    }
    steps[args["step"].get<int64_t>()].emplace_back(1e-6 * event["ts"].get<double>(), std::move(operation));
    return absl::OkStatus();
  }));
  if (work.speeds.empty())
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected an event named resources, got none"));
  if (steps.size() > 1) steps.erase(steps.begin());  // the first step warms up
  for (auto& [number, events] : steps) {
    std::ranges::stable_sort(events, {}, [](const auto& event) { return event.first; });
    std::vector<WorkOperation>& step = work.steps.emplace_back();
    const double begin = events.front().first;
    double last = begin;
    std::map<int, double> lane_end;
    for (auto& [at, operation] : events) {
      const double free = lane_end.contains(operation.lane) ? lane_end[operation.lane] : begin;
      operation.gap_s = std::max(0.0, at - free);
      lane_end[operation.lane] = at + operation.seconds;
      last = std::max(last, at + operation.seconds);
      step.push_back(std::move(operation));
    }
    work.seconds_per_step += last - begin;
  }
  if (work.steps.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": expected operations, got none"));
  work.seconds_per_step /= static_cast<double>(work.steps.size());
  PartWaits(work);
  return work;
}

absl::StatusOr<SampleFit> FitSamples(const std::vector<Sample>& samples, size_t through) {
  if (samples.size() < 2 || through == 0 || through >= samples.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples: expected two or more, of which one beyond the first is fitted, got ", samples.size(),
                     " and number ", through));
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].speed > (i == 0 ? 0 : samples[i - 1].speed) && samples[i].speedup > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("samples: expected rising speeds and speed-ups above 0, got ",
                                                   samples[i].speed, " and ", samples[i].speedup));
  }
  // T(s) = A + C ÷ s, T = 1 at the first, 1 ÷ speed-up at the other.
  const double s0 = samples[0].speed, s1 = samples[through].speed;
  const double t1 = samples[0].speedup / samples[through].speedup;
  SampleFit fit{.scaled = (1 - t1) / (1 / s0 - 1 / s1)};
  fit.fixed = 1 - fit.scaled / s0;
  for (const Sample& sample : samples)
    fit.predicted.push_back(samples[0].speedup / (fit.fixed + fit.scaled / sample.speed));
  return fit;
}

}  // namespace causeway::plan
