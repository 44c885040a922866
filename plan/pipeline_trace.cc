#include "plan/pipeline_trace.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace causeway::plan {
namespace {

struct Event {
  std::string name;
  double begin_us = 0, end_us = 0;
};

using Step = std::vector<std::vector<Event>>;  // of each device

int64_t Median(std::vector<double> microseconds) {
  const auto middle = microseconds.begin() + std::ssize(microseconds) / 2;
  std::ranges::nth_element(microseconds, middle);
  return std::llround(1e3 * *middle);
}

// A step's events as the schedule's list has them.
absl::Status CheckStep(const Step& step, int64_t number, const std::string& name, const PipelineSchedule& schedule) {
  for (size_t d = 0; d < schedule.lists.size(); ++d) {
    size_t at = 0;
    for (const ScheduleStep& listed : schedule.lists[d]) {
      for (const Operation* operation : {&listed.first, listed.second ? &*listed.second : nullptr}) {
        if (operation == nullptr) continue;
        const std::string expected = OperationText(*operation);
        const std::string got = at < step[d].size() ? step[d][at].name : "its end";
        ++at;
        if (got == expected) continue;
        return absl::InvalidArgumentError(absl::StrCat(name, ": step ", number, ", device ", d, ": expected ", expected,
                                                       " of the schedule, got ", core::Shown(got)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlayedPipeline> ReadPipelineTrace(const std::string& text, const std::string& name,
                                                 const PipelineSchedule& schedule) {
  std::map<int64_t, Step> steps;
  RETURN_IF_ERROR(ForEachTraceEvent(text, name, [&](const nlohmann::json& event, const BadEvent& bad) -> absl::Status {
    if (!HasNumber(event, "ts", kMostMicroseconds) || !HasNumber(event, "dur", kMostMicroseconds) ||
        !HasNumber(event, "pid", kMostAmount) || !HasNumber(event, "tid", kMostAmount) || !event.contains("name") ||
        !event["name"].is_string() || !event.contains("args") || !event["args"].contains("step") ||
        !event["args"]["step"].is_number_integer()) {
      return bad("an event with name, ts, dur, pid, tid and args.step, as causeway-worker --trace writes them");
    }
    if (event["pid"].get<double>() != 0) return absl::OkStatus();
    const auto device = event["tid"].get<double>();
    if (device >= schedule.devices) {
      return bad(absl::StrCat("one of ", schedule.devices, " devices in tid").c_str());
    }
    Step& step = steps[event["args"]["step"].get<int64_t>()];
    step.resize(static_cast<size_t>(schedule.devices));
    const double begin = event["ts"].get<double>();
    step[static_cast<size_t>(device)].push_back(
        {event["name"].get<std::string>(), begin, begin + event["dur"].get<double>()});
    return absl::OkStatus();
  }));
  if (!steps.empty()) steps.erase(steps.begin());
  if (steps.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": expected 2 steps or more, got fewer"));
  std::vector<double> makespans;
  for (auto& [number, step] : steps) {
    RETURN_IF_ERROR(CheckStep(step, number, name, schedule));
    double first = kMostMicroseconds, last = 0;
    for (const std::vector<Event>& events : step) {  // of an idle device: none
      if (!events.empty()) first = std::min(first, events.front().begin_us);
    }
    for (std::vector<Event>& events : step) {
      for (Event& event : events) {
        event.begin_us -= first;
        event.end_us -= first;
        last = std::max(last, event.end_us);
      }
    }
    makespans.push_back(last);
  }
  PlayedPipeline played{.makespan = Median(makespans)};
  for (size_t d = 0; d < schedule.lists.size(); ++d) {
    size_t at = 0;
    std::vector<PlayedStep>& list = played.steps.emplace_back();
    for (const ScheduleStep& listed : schedule.lists[d]) {
      std::vector<double> begins, ends;
      for (const auto& [number, step] : steps) {
        begins.push_back(step[d][at].begin_us);
        ends.push_back(step[d][at + (listed.second ? 1 : 0)].end_us);
      }
      list.push_back({Median(begins), Median(ends)});
      at += listed.second ? 2 : 1;
    }
  }
  return played;
}

}  // namespace causeway::plan
