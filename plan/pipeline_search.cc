#include "plan/pipeline_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "plan/pipeline_check.h"

namespace causeway::plan {
namespace {

using Kind = OperationKind;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Search {
 public:
  Search(const SearchInput& input, const PipelineTimes& times);

  PipelineSchedule Run();

 private:
  struct Choice {
    int64_t start = kNever;
    int order = 0;  // I 0, F 1, W 2
    int stage = 0;
    Operation operation;

    // The earlier one; of those that may start at once, I before F before W, and the deeper stage.
    bool Beats(const Choice& other) const {
      return std::tuple(start, order, -stage) < std::tuple(other.start, other.order, -other.stage);
    }
  };

  size_t At(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(input_.micro_batches) + static_cast<size_t>(micro_batch);
  }
  int DeviceOf(int stage) const { return stage < input_.devices ? stage : 2 * input_.devices - 1 - stage; }
  Choice Best(int device) const;
  bool MayForward(int device, int stage) const;
  void Take(int device, const Choice& choice);
  int64_t Message(int from, int to, int64_t end);

  const SearchInput input_;
  const PipelineTimes& times_;
  const int stages_;
  PipelineSchedule schedule_;
  // When the input of F, and of I, has arrived; by stage and micro-batch.
  std::vector<int64_t> forward_ready_, input_ready_;
  std::vector<int> next_forward_, next_input_, next_weight_;  // of each stage: the micro-batch
  std::vector<int64_t> clock_;                                // of each device
  std::vector<int> live_;
  std::vector<std::vector<int64_t>> link_free_;
};

Search::Search(const SearchInput& input, const PipelineTimes& times)
    : input_(input), times_(times), stages_(input.v_shape ? 2 * input.devices : input.devices) {
  const auto devices = static_cast<size_t>(input.devices), stages = static_cast<size_t>(stages_);
  schedule_ = {.devices = input.devices,
               .micro_batches = input.micro_batches,
               .stages = stages_,
               .place = {std::vector<int>(stages)},
               .lists = std::vector<std::vector<ScheduleStep>>(devices)};
  for (int s = 0; s < stages_; ++s) schedule_.place[0][static_cast<size_t>(s)] = DeviceOf(s);
  forward_ready_.assign(stages * static_cast<size_t>(input.micro_batches), kNever);
  input_ready_ = forward_ready_;
  for (int m = 0; m < input.micro_batches; ++m) forward_ready_[At(0, m)] = 0;
  next_forward_ = next_input_ = next_weight_ = std::vector<int>(stages);
  clock_.resize(devices);
  live_.resize(devices);
  link_free_.assign(devices, std::vector<int64_t>(devices));
}

bool Search::MayForward(int device, int stage) const {
  if (input_.cap == 0) return true;
  const int deeper = input_.v_shape && stage < input_.devices ? 1 : 0;
  return live_[static_cast<size_t>(device)] + 1 + deeper <= input_.cap;
}

Search::Choice Search::Best(int device) const {
  Choice best;
  const int64_t now = clock_[static_cast<size_t>(device)];
  const auto offer = [&](int64_t ready, int order, const Operation& operation) {
    if (ready == kNever) return;
    const Choice choice{std::max(now, ready), input_.forward_first && order < 2 ? 1 - order : order, operation.stage,
                        operation};
    if (best.start == kNever || choice.Beats(best)) best = choice;
  };
  for (const int stage : {device, 2 * input_.devices - 1 - device}) {
    if (stage >= stages_) continue;
    const auto s = static_cast<size_t>(stage);
    if (const int m = next_input_[s]; m < next_forward_[s]) {
      offer(input_ready_[At(stage, m)], 0, {Kind::kInput, 0, stage, m});
    }
    if (const int m = next_forward_[s]; m < input_.micro_batches && MayForward(device, stage)) {
      offer(forward_ready_[At(stage, m)], 1, {Kind::kForward, 0, stage, m});
    }
    if (const int m = next_weight_[s]; m < next_input_[s])
      offer(now + input_.patience, 2, {Kind::kWeight, 0, stage, m});
  }
  return best;
}

int64_t Search::Message(int from, int to, int64_t end) {
  if (from == to) return end;
  int64_t& free = link_free_[static_cast<size_t>(from)][static_cast<size_t>(to)];
  const double seconds = times_.bytes_per_s > 0 ? times_.bytes / times_.bytes_per_s : 0;
  free = std::max(end, free) + std::llround(1e9 * seconds);
  return free + times_.message_ns;
}

void Search::Take(int device, const Choice& choice) {
  const Operation& operation = choice.operation;
  const int stage = operation.stage, m = operation.micro_batch;
  const StageTimes& times = times_.stages[static_cast<size_t>(stage)];
  const int64_t duration = operation.kind == Kind::kForward ? times.forward
                           : operation.kind == Kind::kInput ? times.input
                                                            : times.weight;
  const int64_t start = operation.kind == Kind::kWeight ? choice.start - input_.patience : choice.start;
  const int64_t end = start + duration;
  clock_[static_cast<size_t>(device)] = end;
  schedule_.lists[static_cast<size_t>(device)].push_back({operation, {}});
  switch (operation.kind) {
    case Kind::kForward:
      ++next_forward_[static_cast<size_t>(stage)];
      ++live_[static_cast<size_t>(device)];
      if (stage + 1 < stages_) {
        forward_ready_[At(stage + 1, m)] = Message(device, DeviceOf(stage + 1), end);
      } else {
        input_ready_[At(stage, m)] = end;
      }
      break;
    case Kind::kInput:
      ++next_input_[static_cast<size_t>(stage)];
      if (stage > 0) input_ready_[At(stage - 1, m)] = Message(device, DeviceOf(stage - 1), end);
      break;
    default: ++next_weight_[static_cast<size_t>(stage)]; --live_[static_cast<size_t>(device)];
  }
}

// In the order of time: the device whose best operation starts first.
PipelineSchedule Search::Run() {
  while (true) {
    std::optional<std::pair<int, Choice>> first;
    for (int d = 0; d < input_.devices; ++d) {
      const Choice choice = Best(d);
      if (choice.start != kNever && (!first || choice.start < first->second.start))
        first = {d, choice};  // patience, too
    }
    if (!first) return schedule_;
    Take(first->first, first->second);
  }
}

}  // namespace

PipelineSchedule Improved(PipelineSchedule schedule, const PipelineTimes& times, int cap) {
  constexpr int64_t kMostPlayed = 20'000'000;  // operations: some seconds
  size_t operations = 1;
  for (const auto& list : schedule.lists) operations += list.size();
  int64_t plays = kMostPlayed / static_cast<int64_t>(operations);
  const auto makespan = [&] {
    --plays;
    const auto played = Play(schedule, times);
    return played.ok() ? played->makespan : kNever;
  };
  int64_t best = makespan();
  bool better = true;
  while (better && plays > 0) {
    better = false;
    for (auto& list : schedule.lists) {
      for (size_t i = 0; i + 1 < list.size() && plays > 0; ++i) {
        std::swap(list[i], list[i + 1]);
        const int64_t now = makespan();
        if (now < best && CheckPipeline(schedule, {.cap = cap}).ok()) {
          best = now;
          better = true;
        } else {
          std::swap(list[i], list[i + 1]);
        }
      }
    }
  }
  return schedule;
}

absl::StatusOr<PipelineSchedule> GreedySchedule(const SearchInput& input, const PipelineTimes& times) {
  const int least = input.v_shape ? 2 : 1;
  if (input.cap != 0 && input.cap < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a cap of at least ", least, " live micro-batches of a device, got ", input.cap));
  }
  CHECK(std::ssize(times.stages) == (input.v_shape ? 2 : 1) * input.devices);
  return Search(input, times).Run();
}

}  // namespace causeway::plan
