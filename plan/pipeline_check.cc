#include "plan/pipeline_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "plan/pipeline_time.h"

namespace causeway::plan {
namespace {

using Kind = OperationKind;

struct Position {
  int device = 0, index = 0;
  Operation operation;
};

absl::Status Fault(const char* rule, const Position& at, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(rule, ": device ", at.device, ", position ", at.index, ", ",
                                                 OperationText(at.operation), ": ", what));
}

// Every operation with its place, device by device in order.
std::vector<Position> PositionsOf(const PipelineSchedule& schedule) {
  std::vector<Position> positions;
  for (size_t d = 0; d < schedule.lists.size(); ++d) {
    for (size_t i = 0; i < schedule.lists[d].size(); ++i) {
      const ScheduleStep& step = schedule.lists[d][i];
      positions.push_back({static_cast<int>(d), static_cast<int>(i), step.first});
      if (step.second) positions.push_back({static_cast<int>(d), static_cast<int>(i), *step.second});
    }
  }
  return positions;
}

absl::Status CheckShape(const PipelineSchedule& s) {
  const auto fault = [](const std::string& what) { return absl::InvalidArgumentError(absl::StrCat("V1: ", what)); };
  if (s.devices < 1 || s.stages < 1 || s.copies < 1 || s.micro_batches < 1 || s.micro_batches % s.copies != 0) {
    return fault(absl::StrCat("expected devices, stages and micro-batches, as many for each copy, got ", s.devices,
                              ", ", s.stages, ", ", s.micro_batches, " for ", s.copies));
  }
  if (std::ssize(s.lists) != s.devices || std::ssize(s.place) != s.copies) {
    return fault(absl::StrCat("expected a list for each device and a place for each copy, got ", s.lists.size(),
                              " and ", s.place.size()));
  }
  for (const auto& place : s.place) {
    if (std::ssize(place) != s.stages)
      return fault(absl::StrCat("expected a device for each stage, got ", place.size()));
    for (const int device : place) {
      if (device < 0 || device >= s.devices) return fault(absl::StrCat("a stage is on device ", device));
    }
  }
  return absl::OkStatus();
}

class Checker {
 public:
  Checker(const PipelineSchedule& schedule, const PipelineLimits& limits)
      : schedule_(schedule), limits_(limits), positions_(PositionsOf(schedule)) {}

  absl::Status Check() {
    RETURN_IF_ERROR(CheckShape(schedule_));
    RETURN_IF_ERROR(CheckRanges());
    RETURN_IF_ERROR(CheckOnce());
    RETURN_IF_ERROR(CheckOrder());
    RETURN_IF_ERROR(CheckGathers());
    RETURN_IF_ERROR(CheckReductions());
    RETURN_IF_ERROR(CheckCap());
    return CheckPlayed();
  }

 private:
  using Place = std::tuple<int, int>;       // copy, stage
  using Chunk = std::tuple<int, int, int>;  // copy, stage, micro-batch
  static Place PlaceOf(const Operation& o) { return {o.copy, o.stage}; }
  static Chunk ChunkOf(const Operation& o) { return {o.copy, o.stage, o.micro_batch}; }

  absl::Status CheckRanges() const;
  absl::Status CheckOnce() const;
  absl::Status CheckOrder() const;
  absl::Status CheckGathers() const;
  absl::Status CheckReductions() const;
  absl::Status CheckCap() const;
  absl::Status CheckPlayed() const;

  const PipelineSchedule& schedule_;
  const PipelineLimits limits_;
  const std::vector<Position> positions_;
};

absl::Status Checker::CheckRanges() const {
  for (const Position& at : positions_) {
    const Operation& o = at.operation;
    if (o.copy < 0 || o.copy >= schedule_.copies || o.stage < 0 || o.stage >= schedule_.stages ||
        (IsCompute(o.kind) && (o.micro_batch < 0 || o.micro_batch >= schedule_.micro_batches_of_copy()))) {
      return Fault("V1", at,
                   absl::StrCat("expected one of ", schedule_.copies, " copies, ", schedule_.stages, " stages and ",
                                schedule_.micro_batches_of_copy(), " micro-batches"));
    }
    const int device = schedule_.place[static_cast<size_t>(o.copy)][static_cast<size_t>(o.stage)];
    if (device != at.device) {
      return Fault("V2", at, absl::StrCat("expected on device ", device, ", where the stage is"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckOnce() const {
  std::map<Operation, int> times;
  for (const Position& at : positions_) {
    if (!IsCompute(at.operation.kind)) continue;
    if (++times[at.operation] > 1) return Fault("V1", at, "expected once, it is there twice");
    Operation other = at.operation;
    other.kind = Kind::kBackward;
    const bool apart = at.operation.kind == Kind::kInput || at.operation.kind == Kind::kWeight;
    if (apart && times.contains(other)) return Fault("V1", at, "expected B, or I and W, it has both");
    for (const Kind kind : {Kind::kInput, Kind::kWeight}) {
      other.kind = kind;
      if (at.operation.kind == Kind::kBackward && times.contains(other)) {
        return Fault("V1", at, "expected B, or I and W, it has both");
      }
    }
  }
  for (int copy = 0; copy < schedule_.copies; ++copy) {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      for (int m = 0; m < schedule_.micro_batches_of_copy(); ++m) {
        const auto has = [&](Kind kind) { return times.contains({kind, copy, stage, m}); };
        const bool whole = has(Kind::kBackward) || (has(Kind::kInput) && has(Kind::kWeight));
        if (has(Kind::kForward) && whole) continue;
        const Kind missing = !has(Kind::kForward) ? Kind::kForward
                             : has(Kind::kInput)  ? Kind::kWeight
                             : has(Kind::kWeight) ? Kind::kInput
                                                  : Kind::kBackward;
        const int device = schedule_.place[static_cast<size_t>(copy)][static_cast<size_t>(stage)];
        return absl::InvalidArgumentError(absl::StrCat("V1: device ", device, ", end of its list, ",
                                                       OperationText({missing, copy, stage, m}), ": it is missing"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckOrder() const {
  std::map<Chunk, int> stage_of;      // 1 after F, 2 after I, 3 after W or B
  std::map<Place, int> last_weight;   // the micro-batch
  std::map<Chunk, Position> forward;  // in the same step, as pairs are
  for (const Position& at : positions_) {
    if (!IsCompute(at.operation.kind)) continue;
    int& done = stage_of[ChunkOf(at.operation)];
    const int expected = at.operation.kind == Kind::kForward ? 0 : at.operation.kind == Kind::kWeight ? 2 : 1;
    if (done != expected) return Fault("V3", at, "expected behind the F and I of its micro-batch");
    if (at.operation.kind == Kind::kForward) forward[ChunkOf(at.operation)] = at;
    const auto begun = forward.find(ChunkOf(at.operation));
    if (expected > 0 && begun != forward.end() && begun->second.index == at.index) {
      return Fault("V3", at, "expected behind its own F, it is in one pair with it");
    }
    done = at.operation.kind == Kind::kForward ? 1 : at.operation.kind == Kind::kInput ? 2 : 3;
    if (done < 3) continue;
    const auto [last, first_one] = last_weight.try_emplace(PlaceOf(at.operation), -1);
    if (at.operation.micro_batch < last->second) {
      return Fault("V5", at,
                   absl::StrCat("expected weight gradients in the order of micro-batches, it follows ", last->second));
    }
    last->second = at.operation.micro_batch;
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckGathers() const {
  std::set<Place> gathered_ever;
  for (const Position& at : positions_) {
    if (at.operation.kind == Kind::kGather) gathered_ever.insert(PlaceOf(at.operation));
  }
  std::map<Place, int> there;
  for (const Position& at : positions_) {
    int& now = there[PlaceOf(at.operation)];
    if (at.operation.kind == Kind::kGather) ++now;
    if (at.operation.kind == Kind::kRelease && --now < 0) return Fault("V8", at, "expected behind a G of its stage");
    const bool uses = IsCompute(at.operation.kind) && gathered_ever.contains(PlaceOf(at.operation));
    if (uses && now == 0) return Fault("V8", at, "expected between a G and an R of its stage");
  }
  for (const auto& [place, now] : there) {
    if (now == 0) continue;
    const auto last =
        std::ranges::find_if(positions_.rbegin(), positions_.rend(), [&, place = place](const Position& at) {
          return at.operation.kind == Kind::kGather && PlaceOf(at.operation) == place;
        });
    return Fault("V8", *last, "expected an R behind it");
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckReductions() const {
  const bool reduces =
      std::ranges::any_of(positions_, [](const Position& at) { return at.operation.kind == Kind::kReduce; });
  if (!reduces && schedule_.copies == 1) return absl::OkStatus();
  std::set<Place> reduced;
  for (const Position& at : positions_) {
    if (at.operation.kind == Kind::kReduce && !reduced.insert(PlaceOf(at.operation)).second) {
      return Fault("V10", at, "expected once, it is there twice");
    }
    const bool changes = at.operation.kind == Kind::kWeight || at.operation.kind == Kind::kBackward;
    if (changes && reduced.contains(PlaceOf(at.operation))) {
      return Fault("V10", at, "expected before the A of its stage");
    }
  }
  for (int copy = 0; copy < schedule_.copies; ++copy) {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      if (reduced.contains({copy, stage})) continue;
      const int device = schedule_.place[static_cast<size_t>(copy)][static_cast<size_t>(stage)];
      return absl::InvalidArgumentError(absl::StrCat("V10: device ", device, ", end of its list, ",
                                                     OperationText({Kind::kReduce, copy, stage, 0}),
                                                     ": it is missing, and the copies' gradients stay apart"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckCap() const {
  std::map<int, int> live;  // by device
  for (const Position& at : positions_) {
    int& now = live[at.device];
    if (at.operation.kind == Kind::kForward && ++now > limits_.cap && limits_.cap > 0) {
      return Fault("V6", at, absl::StrCat("expected at most ", limits_.cap, " live micro-batches, it is number ", now));
    }
    if (at.operation.kind == Kind::kBackward || at.operation.kind == Kind::kWeight) --now;
  }
  return absl::OkStatus();
}

// The largest number of buffers that a receiver needs for one sender, and where.
struct Slots {
  int most = 0;
  Position at;
};

Slots SlotsOf(const PipelineSchedule& schedule, const std::vector<Position>& positions) {
  const auto device_of = [&](int copy, int stage) {
    return schedule.place[static_cast<size_t>(copy)][static_cast<size_t>(stage)];
  };
  // A message is named by the operation that makes it: F for the next stage, I (or B) for the one before.
  const auto name = [](Operation o) {
    if (o.kind == Kind::kBackward) o.kind = Kind::kInput;
    return o;
  };
  std::map<std::pair<int, int>, std::vector<Operation>> sent;  // by sender and receiver, in the sender's order
  for (const Position& at : positions) {
    const Operation o = name(at.operation);
    if (o.kind != Kind::kForward && o.kind != Kind::kInput) continue;
    const int to = o.stage + (o.kind == Kind::kForward ? 1 : -1);
    if (to < 0 || to >= schedule.stages || device_of(o.copy, to) == at.device) continue;
    sent[{at.device, device_of(o.copy, to)}].push_back(o);
  }
  Slots slots;
  std::set<Operation> used;
  for (const Position& at : positions) {
    Operation needed = name(at.operation);
    if (needed.kind != Kind::kForward && needed.kind != Kind::kInput) continue;
    needed.stage += needed.kind == Kind::kForward ? -1 : 1;
    if (needed.stage < 0 || needed.stage >= schedule.stages) continue;
    const int sender = device_of(needed.copy, needed.stage);
    if (sender == at.device) continue;
    int held = 1;
    for (const Operation& message : sent[{sender, at.device}]) {
      if (message == needed) break;
      held += !used.contains(message);
    }
    used.insert(needed);
    if (held > slots.most) slots = {held, at};
  }
  return slots;
}

absl::Status Checker::CheckPlayed() const {
  const auto played = Play(schedule_, UnitTimes(schedule_, 1));
  if (!played.ok()) return absl::InvalidArgumentError(absl::StrCat("V4: ", played.status().message()));
  const Slots slots = SlotsOf(schedule_, positions_);
  if (limits_.slots == 0 || slots.most <= limits_.slots) return absl::OkStatus();
  return Fault("V7", slots.at,
               absl::StrCat("expected at most ", limits_.slots,
                            " receive buffers for its sender, it "
                            "needs ",
                            slots.most));
}

}  // namespace

int ReceiveSlots(const PipelineSchedule& schedule) { return SlotsOf(schedule, PositionsOf(schedule)).most; }

absl::Status CheckPipeline(const PipelineSchedule& schedule, const PipelineLimits& limits) {
  return Checker(schedule, limits).Check();
}

}  // namespace causeway::plan
