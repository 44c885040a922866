#include "worker/parallel/pipeline_program.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "plan/pipeline_check.h"

namespace causeway::worker {
namespace {

using plan::Operation;
using Kind = plan::OperationKind;

std::vector<PipelineStep> Flattened(const std::vector<plan::ScheduleStep>& list) {
  std::vector<PipelineStep> steps;
  for (const plan::ScheduleStep& step : list) {
    steps.push_back({.operation = step.first});
    if (step.second) steps.push_back({.operation = *step.second});
  }
  return steps;
}

bool GoesDown(const Operation& operation) {
  return operation.kind == Kind::kBackward || operation.kind == Kind::kInput;
}

// Simulates the programs without time.
class Rehearsal {
 public:
  Rehearsal(const PipelinePrograms& programs, int slots, SendKind sends)
      : programs_(programs), slots_(slots), sends_(sends), at_(programs.devices.size()) {}

  absl::Status Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int d = 0; d < devices(); ++d) {
        while (MayRun(d)) {
          Step(d);
          moved = true;
        }
      }
    }
    std::vector<std::string> waits;
    for (int d = 0; d < devices(); ++d) {
      if (const PipelineStep* step = Next(d)) waits.push_back(WaitOf(d, *step));
    }
    if (waits.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("schedule: ", absl::StrJoin(waits, "; ")));
  }

 private:
  int devices() const { return static_cast<int>(programs_.devices.size()); }
  const PipelineStep* Next(int device) const {
    const auto& steps = programs_.devices[static_cast<size_t>(device)].steps;
    const size_t at = at_[static_cast<size_t>(device)];
    return at < steps.size() ? &steps[at] : nullptr;
  }
  // The message has arrived: it was sent, and fits into one of the slots.
  bool Arrived(int device, const PipelineMessage& message) {
    const std::pair pair(message.device, device);
    if (message.device == device || sends_ == SendKind::kRendezvous) return message.number < given_[pair];
    return message.number < given_[pair] && message.number < used_[pair] + slots_;
  }
  // With rendezvous a message counts as sent once its receiver has come to it.
  bool MayGive(int device, const PipelineMessage& message) const {
    if (sends_ == SendKind::kAsynchronous || message.device == device) return true;
    const PipelineStep* other = Next(message.device);
    return other != nullptr && other->input == PipelineMessage{device, message.number};
  }
  bool MayRun(int device) {
    const PipelineStep* step = Next(device);
    if (step == nullptr) return false;
    if (computed_.contains(device)) return MayGive(device, *step->output);
    return !step->input || Arrived(device, *step->input);
  }
  void Step(int device) {
    const PipelineStep& step = *Next(device);
    if (!computed_.contains(device)) {
      if (step.input) ++used_[{step.input->device, device}];
      if (step.output && !MayGive(device, *step.output)) {
        computed_.insert(device);
        return;
      }
    }
    computed_.erase(device);
    if (step.output) ++given_[{device, step.output->device}];
    ++at_[static_cast<size_t>(device)];
  }
  std::string WaitOf(int device, const PipelineStep& step) {
    const std::string place = absl::StrCat("device ", device, " waits at ", plan::OperationText(step.operation));
    if (computed_.contains(device)) return absl::StrCat(place, " for device ", step.output->device, " to receive");
    const std::pair pair(step.input->device, device);
    if (step.input->number < given_[pair]) {
      return absl::StrCat(place, " for a slot from device ", step.input->device, ", all ", slots_,
                          " of which hold later messages");
    }
    return absl::StrCat(place, " for device ", step.input->device);
  }

  const PipelinePrograms& programs_;
  const int slots_;
  const SendKind sends_;
  std::vector<size_t> at_;
  std::set<int> computed_;                           // has run its step, and waits to send its message
  std::map<std::pair<int, int>, int> given_, used_;  // of each ordered pair
};

}  // namespace

absl::StatusOr<PipelinePrograms> CompilePipeline(const plan::PipelineSchedule& schedule) {
  RETURN_IF_ERROR(CheckPipeline(schedule));
  PipelinePrograms programs{.devices = std::vector<PipelineProgram>(static_cast<size_t>(schedule.devices)),
                            .slots = std::max(1, plan::ReceiveSlots(schedule))};
  const auto device_of = [&](const Operation& o, int stage) {
    return schedule.place[static_cast<size_t>(o.copy)][static_cast<size_t>(stage)];
  };
  std::map<Operation, PipelineMessage> messages;  // by the F or I that takes it: its sender
  std::map<std::pair<int, int>, int> numbers;
  for (int d = 0; d < schedule.devices; ++d) {
    PipelineProgram& program = programs.devices[static_cast<size_t>(d)];
    program.steps = Flattened(schedule.lists[static_cast<size_t>(d)]);
    for (PipelineStep& step : program.steps) {
      const Operation& o = step.operation;
      const int next = o.stage + (GoesDown(o) ? -1 : 1);
      if ((o.kind != Kind::kForward && !GoesDown(o)) || next < 0 || next >= schedule.stages) continue;
      const int to = device_of(o, next);
      const int number = numbers[{d, to}]++;
      step.output = {to, number};
      messages[{GoesDown(o) ? Kind::kInput : Kind::kForward, o.copy, next, o.micro_batch}] = {d, number};
      if (to != d) ++program.given[to];
    }
  }
  for (int d = 0; d < schedule.devices; ++d) {
    PipelineProgram& program = programs.devices[static_cast<size_t>(d)];
    for (PipelineStep& step : program.steps) {
      Operation key = step.operation;
      if (key.kind == Kind::kBackward) key.kind = Kind::kInput;
      if (key.kind != Kind::kForward && key.kind != Kind::kInput) continue;
      const auto found = messages.find(key);
      if (found == messages.end()) continue;
      step.input = found->second;
      if (found->second.device != d) ++program.received[found->second.device];
    }
  }
  RETURN_IF_ERROR(Rehearse(programs, programs.slots, SendKind::kAsynchronous));
  return programs;
}

absl::Status Rehearse(const PipelinePrograms& programs, int slots, SendKind sends) {
  return Rehearsal(programs, slots, sends).Run();
}

}  // namespace causeway::worker
