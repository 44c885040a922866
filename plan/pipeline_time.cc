#include "plan/pipeline_time.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/random.h"

namespace causeway::plan {
namespace {

using Kind = OperationKind;

class Player {
 public:
  Player(const PipelineSchedule& schedule, const PipelineTimes& times) : schedule_(schedule), times_(times) {}

  absl::StatusOr<PlayedPipeline> Play();

 private:
  // Operations whose result another one needs: a whole backward stands for its I.
  static Operation Key(Operation operation) {
    if (operation.kind == Kind::kBackward) operation.kind = Kind::kInput;
    return operation;
  }
  int DeviceOf(const Operation& operation) const {
    return schedule_.place[static_cast<size_t>(operation.copy)][static_cast<size_t>(operation.stage)];
  }
  std::vector<Operation> NeedsOf(const Operation& operation) const;
  // When everything that the step needs is on the device; nullopt: not yet known. Then `waits_for` is what.
  std::optional<int64_t> ReadyAt(const ScheduleStep& step, Operation& waits_for) const;
  int64_t Duration(const ScheduleStep& step) const;
  int64_t DurationOf(const Operation& operation) const;
  int64_t MeanOf(const Operation& operation) const;
  void Finish(int device, const Operation& operation, int64_t end);
  std::string Circle(int device, const std::vector<std::vector<PlayedStep>>& steps) const;

  const PipelineSchedule& schedule_;
  const PipelineTimes& times_;
  std::map<Operation, int64_t> arrived_;  // where it is needed: on its device, or on the one of the next stage
  std::map<std::pair<int, int>, int64_t> link_free_;  // of (sender, receiver)
  std::map<Operation, int64_t> done_;                 // on its own device
  int64_t messages_ = 0;
};

std::vector<Operation> Player::NeedsOf(const Operation& operation) const {
  Operation other = operation;
  switch (operation.kind) {
    case Kind::kForward: other.stage -= 1; return other.stage < 0 ? std::vector<Operation>() : std::vector{other};
    case Kind::kBackward:
    case Kind::kInput: {
      other.kind = Kind::kForward;
      std::vector<Operation> needs = {other};
      if (operation.stage + 1 < schedule_.stages) {
        needs.push_back({Kind::kInput, operation.copy, operation.stage + 1, operation.micro_batch});
      }
      return needs;
    }
    case Kind::kWeight: other.kind = Kind::kInput; return {other};
    default: return {};
  }
}

std::optional<int64_t> Player::ReadyAt(const ScheduleStep& step, Operation& waits_for) const {
  int64_t ready = 0;
  for (const Operation* operation : {&step.first, step.second ? &*step.second : nullptr}) {
    if (operation == nullptr) continue;
    for (const Operation& need : NeedsOf(*operation)) {
      const auto& known = need.stage == operation->stage ? done_ : arrived_;
      const auto found = known.find(need);
      if (found == known.end()) {
        waits_for = need;
        return std::nullopt;
      }
      ready = std::max(ready, found->second);
    }
  }
  return ready;
}

int64_t Player::DurationOf(const Operation& operation) const {
  const int64_t mean = MeanOf(operation);
  if (times_.jitter == 0) return mean;
  uint64_t draw = times_.seed;
  for (const int part : {static_cast<int>(operation.kind), operation.copy, operation.stage, operation.micro_batch}) {
    draw = core::HashCombine(draw, static_cast<uint64_t>(part));
  }
  return std::llround(static_cast<double>(mean) * (1 + times_.jitter * (2 * core::UnitInterval(draw) - 1)));
}

int64_t Player::MeanOf(const Operation& operation) const {
  if (!IsCompute(operation.kind)) return 0;
  const StageTimes& stage = times_.stages[static_cast<size_t>(operation.stage)];
  switch (operation.kind) {
    case Kind::kForward: return stage.forward;
    case Kind::kBackward: return stage.backward > 0 ? stage.backward : stage.input + stage.weight;
    case Kind::kInput: return stage.input;
    default: return stage.weight;
  }
}

int64_t Player::Duration(const ScheduleStep& step) const {
  if (!step.second) return DurationOf(step.first);
  const int64_t measured = times_.stages[static_cast<size_t>(step.first.stage)].pair;
  return measured > 0 ? measured : DurationOf(step.first) + DurationOf(*step.second);
}

void Player::Finish(int device, const Operation& operation, int64_t end) {
  if (!IsCompute(operation.kind)) return;
  const Operation key = Key(operation);
  done_[key] = end;
  if (key.kind == Kind::kWeight) return;
  Operation next = operation;
  next.stage += key.kind == Kind::kForward ? 1 : -1;
  if (next.stage < 0 || next.stage >= schedule_.stages) return;
  const int receiver = DeviceOf(next);
  int64_t arrives = end;
  if (receiver != device) {
    int64_t& free = link_free_[{device, receiver}];
    const int64_t begin = std::max(end, free);
    const double seconds = times_.bytes_per_s > 0 ? times_.bytes / times_.bytes_per_s : 0;
    free = begin + std::llround(1e9 * seconds);
    arrives = free + times_.message_ns;
    ++messages_;
  }
  arrived_[key] = arrives;
}

// Who waits for whom, from a device that does to where it closes.
std::string Player::Circle(int device, const std::vector<std::vector<PlayedStep>>& steps) const {
  std::vector<std::string> waits;
  std::map<int, size_t> seen;
  while (!seen.contains(device)) {
    seen[device] = waits.size();
    const size_t at = steps[static_cast<size_t>(device)].size();
    const auto& list = schedule_.lists[static_cast<size_t>(device)];
    if (at == list.size()) {
      waits.push_back(absl::StrCat("device ", device, " is through, and has it not"));
      return absl::StrJoin(waits, "; ");
    }
    Operation need;
    ReadyAt(list[at], need);
    waits.push_back(absl::StrCat("device ", device, ", position ", at, ", ", StepText(list[at]), ": waits for ",
                                 OperationText(need)));
    device = DeviceOf(need);
  }
  waits.erase(waits.begin(), waits.begin() + static_cast<std::ptrdiff_t>(seen[device]));
  return absl::StrJoin(waits, "; ");
}

absl::StatusOr<PlayedPipeline> Player::Play() {
  const auto devices = static_cast<size_t>(schedule_.devices);
  PlayedPipeline played{.busy = std::vector<int64_t>(devices),
                        .span = std::vector<int64_t>(devices),
                        .peak_chunks = std::vector<int>(devices),
                        .steps = std::vector<std::vector<PlayedStep>>(devices)};
  std::vector<int64_t> clock(devices);
  std::vector<int> live(devices);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t d = 0; d < devices; ++d) {
      const auto& list = schedule_.lists[d];
      auto& steps = played.steps[d];
      Operation waits_for;
      while (steps.size() < list.size()) {
        const ScheduleStep& step = list[steps.size()];
        const std::optional<int64_t> ready = ReadyAt(step, waits_for);
        if (!ready) break;
        const int64_t start = std::max(clock[d], *ready), end = start + Duration(step);
        clock[d] = end;
        played.busy[d] += end - start;
        steps.push_back({start, end});
        for (const Operation* operation : {&step.first, step.second ? &*step.second : nullptr}) {
          if (operation == nullptr) continue;
          Finish(static_cast<int>(d), *operation, end);
          live[d] += operation->kind == Kind::kForward;
          played.peak_chunks[d] = std::max(played.peak_chunks[d], live[d]);
          live[d] -= operation->kind == Kind::kBackward || operation->kind == Kind::kWeight;
        }
        moved = true;
      }
    }
  }
  for (size_t d = 0; d < devices; ++d) {
    const auto& steps = played.steps[d];
    if (steps.size() < schedule_.lists[d].size()) {
      return absl::InvalidArgumentError(Circle(static_cast<int>(d), played.steps));
    }
    if (!steps.empty()) played.span[d] = steps.back().end - steps.front().start;
    played.makespan = std::max(played.makespan, clock[d]);
  }
  played.messages = messages_;
  return played;
}

}  // namespace

PipelineTimes UnitTimes(const PipelineSchedule& schedule, int64_t forward) {
  PipelineTimes times;
  times.stages.assign(static_cast<size_t>(schedule.stages), {.forward = forward, .input = forward, .weight = forward});
  return times;
}

absl::StatusOr<PlayedPipeline> Play(const PipelineSchedule& schedule, const PipelineTimes& times) {
  CHECK(std::ssize(times.stages) == schedule.stages);
  return Player(schedule, times).Play();
}

}  // namespace causeway::plan
