#include "plan/pipeline_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/random.h"

namespace causeway::plan {
namespace {

using Kind = OperationKind;

constexpr int64_t kUnknown = -1;

// A time for each F, I and W of a schedule.
class Times {
 public:
  explicit Times(const PipelineSchedule& schedule)
      : stages_(static_cast<size_t>(schedule.stages)),
        micro_batches_(static_cast<size_t>(schedule.micro_batches_of_copy())),
        copies_(static_cast<size_t>(schedule.copies)),
        values_(3 * copies_ * stages_ * micro_batches_, kUnknown) {}

  int64_t& operator[](const Operation& operation) {
    const size_t kind = operation.kind == Kind::kForward ? 0 : operation.kind == Kind::kInput ? 1 : 2;
    const size_t place =
        (kind * copies_ + static_cast<size_t>(operation.copy)) * stages_ + static_cast<size_t>(operation.stage);
    const size_t at = place * micro_batches_ + static_cast<size_t>(operation.micro_batch);
    CHECK(at < values_.size());
    return values_[at];
  }
  int64_t operator[](const Operation& operation) const { return const_cast<Times&>(*this)[operation]; }

 private:
  const size_t stages_, micro_batches_, copies_;
  std::vector<int64_t> values_;
};

// At most two.
struct Needs {
  void Add(const Operation& operation) { those[static_cast<size_t>(count++)] = operation; }
  std::span<const Operation> all() const { return std::span(those).first(static_cast<size_t>(count)); }

  std::array<Operation, 2> those;
  int count = 0;
};

class Player {
 public:
  Player(const PipelineSchedule& schedule, const PipelineTimes& times)
      : schedule_(schedule),
        times_(times),
        arrived_(schedule),
        done_(schedule),
        link_free_(static_cast<size_t>(schedule.devices * schedule.devices)) {}

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
  Needs NeedsOf(const Operation& operation) const;
  // The time when everything that the step needs is on the device; nullopt: not yet known, because of `waits_for`.
  std::optional<int64_t> ReadyAt(const ScheduleStep& step, Operation& waits_for) const;
  int64_t Duration(const ScheduleStep& step) const;
  int64_t DurationOf(const Operation& operation) const;
  int64_t MeanOf(const Operation& operation) const;
  void Finish(int device, const Operation& operation, int64_t end);
  void Reduce(const Operation& operation, int64_t end);
  std::string Circle(int device, const std::vector<std::vector<PlayedStep>>& steps) const;

  const PipelineSchedule& schedule_;
  const PipelineTimes& times_;
  Times arrived_;                   // where it is needed: on its device, or on the one of the next stage
  Times done_;                      // on its own device
  std::vector<int64_t> link_free_;  // of each sender and receiver
  // A: when the first holder of a stage came to it, when two devices have finished theirs, when all have.
  std::map<int, int64_t> first_holder_;
  std::map<std::pair<int, int>, int64_t> reduce_free_;
  int64_t reduced_ = 0;
  int64_t messages_ = 0;
};

Needs Player::NeedsOf(const Operation& operation) const {
  Needs needs;
  Operation other = operation;
  switch (operation.kind) {
    case Kind::kForward:
      other.stage -= 1;
      if (other.stage >= 0) needs.Add(other);
      break;
    case Kind::kBackward:
    case Kind::kInput:
      other.kind = Kind::kForward;
      needs.Add(other);
      if (operation.stage + 1 < schedule_.stages) {
        needs.Add({Kind::kInput, operation.copy, operation.stage + 1, operation.micro_batch});
      }
      break;
    case Kind::kWeight:
      other.kind = Kind::kInput;
      needs.Add(other);
      break;
    default: break;
  }
  return needs;
}

std::optional<int64_t> Player::ReadyAt(const ScheduleStep& step, Operation& waits_for) const {
  int64_t ready = 0;
  for (const Operation* operation : {&step.first, step.second ? &*step.second : nullptr}) {
    if (operation == nullptr) continue;
    const Needs needs = NeedsOf(*operation);
    for (const Operation& need : needs.all()) {
      const int64_t known = (need.stage == operation->stage ? done_ : arrived_)[need];
      if (known == kUnknown) {
        waits_for = need;
        return std::nullopt;
      }
      ready = std::max(ready, known);
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
  const auto saved = [&](int stage) {
    const StageTimes& times = times_.stages[static_cast<size_t>(stage)];
    return times.pair > 0 ? times.forward + MeanOf({.kind = Kind::kBackward, .stage = stage}) - times.pair : 0;
  };
  return DurationOf(step.first) + DurationOf(*step.second) -
         std::min(saved(step.first.stage), saved(step.second->stage));
}

// A of one holder; with the second one the exchange begins, in which each sends all to the other once.
void Player::Reduce(const Operation& operation, int64_t end) {
  const auto [first, is_first] = first_holder_.emplace(operation.stage, end);
  if (is_first) return;
  const double bytes = times_.reduce_bytes[static_cast<size_t>(operation.stage)];
  const double seconds = times_.bytes_per_s > 0 ? bytes / times_.bytes_per_s : 0;
  const size_t stage = static_cast<size_t>(operation.stage);
  int64_t& free = reduce_free_[std::minmax(schedule_.place.front()[stage], schedule_.place.back()[stage])];
  free = std::max({first->second, end, free}) + std::llround(1e9 * seconds) + 2 * times_.message_ns;
  reduced_ = std::max(reduced_, free);
}

void Player::Finish(int device, const Operation& operation, int64_t end) {
  if (operation.kind == Kind::kReduce && !times_.reduce_bytes.empty()) Reduce(operation, end);
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
    int64_t& free = link_free_[static_cast<size_t>(device * schedule_.devices + receiver)];
    const int64_t begin = std::max(end, free);
    const double seconds = times_.bytes_per_s > 0 ? times_.bytes / times_.bytes_per_s : 0;
    free = begin + std::llround(1e9 * seconds);
    arrives = free + times_.message_ns;
    ++messages_;
  }
  arrived_[key] = arrives;
}

// The chain of waiting devices, from one that waits to where it closes.
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
  played.makespan = std::max(played.makespan, reduced_);
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
