// A valid schedule drawn at random: devices take, in an order that the seed decides, any operation that may come next.
#pragma once

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "plan/pipeline_check.h"
#include "plan/pipeline_schedule.h"

namespace causeway::worker {

inline plan::PipelineSchedule RandomSchedule(uint64_t seed) {
  using Kind = plan::OperationKind;
  uint64_t draws = 0;
  const auto below = [&](int n) {
    return static_cast<int>(core::HashCombine(seed, draws++) % static_cast<uint64_t>(n));
  };
  plan::PipelineSchedule schedule{.devices = 2 + below(3), .micro_batches = 1 + below(5)};
  schedule.stages = schedule.devices * (1 + below(2));
  std::vector<int>& place = schedule.place.emplace_back();
  for (int s = 0; s < schedule.stages; ++s) place.push_back(s < schedule.devices ? s : below(schedule.devices));
  for (size_t s = place.size(); s > 1; --s)
    std::swap(place[s - 1], place[static_cast<size_t>(below(static_cast<int>(s)))]);
  schedule.lists.resize(static_cast<size_t>(schedule.devices));
  struct Progress {
    bool split = false;
    std::vector<bool> forward, input;
    int weights = 0;  // by micro-batch, in order
  };
  std::vector<Progress> stages(static_cast<size_t>(schedule.stages));
  const auto n = static_cast<size_t>(schedule.micro_batches);
  for (Progress& stage : stages) stage = {below(2) == 0, std::vector<bool>(n), std::vector<bool>(n)};
  while (true) {
    std::vector<plan::Operation> ready;
    for (int s = 0; s < schedule.stages; ++s) {
      const Progress& stage = stages[static_cast<size_t>(s)];
      for (size_t m = 0; m < n; ++m) {
        const auto add = [&](Kind kind) { ready.push_back({kind, 0, s, static_cast<int>(m)}); };
        const bool above = s + 1 == schedule.stages || stages[static_cast<size_t>(s) + 1].input[m];
        if (!stage.forward[m] && (s == 0 || stages[static_cast<size_t>(s) - 1].forward[m])) add(Kind::kForward);
        if (stage.forward[m] && !stage.input[m] && above && (stage.split || stage.weights == static_cast<int>(m))) {
          add(stage.split ? Kind::kInput : Kind::kBackward);
        }
        if (stage.split && stage.input[m] && stage.weights == static_cast<int>(m)) add(Kind::kWeight);
      }
    }
    if (ready.empty()) break;
    const plan::Operation next = ready[static_cast<size_t>(below(static_cast<int>(ready.size())))];
    Progress& stage = stages[static_cast<size_t>(next.stage)];
    const auto m = static_cast<size_t>(next.micro_batch);
    if (next.kind == Kind::kForward) stage.forward[m] = true;
    if (next.kind == Kind::kInput || next.kind == Kind::kBackward) stage.input[m] = true;
    if (next.kind == Kind::kWeight || next.kind == Kind::kBackward) ++stage.weights;
    schedule.lists[static_cast<size_t>(place[static_cast<size_t>(next.stage)])].push_back({next});
  }
  CHECK(plan::CheckPipeline(schedule).ok());
  return schedule;
}

}  // namespace causeway::worker
