#include "formats/steps_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/schedule.h"

namespace causeway::formats {

using core::FragmentId;
using core::Step;

void CheckSteps(const core::RunConfig& config, FieldCheck& check) {
  if (config.steps == 0) return;
  const core::FragmentSchedule schedule = config.sync.Schedule();
  FragmentId last = 0;
  for (FragmentId p = 1; p < schedule.num_fragments(); ++p) {
    if (schedule.SendStep(p, 0) > schedule.SendStep(last, 0)) last = p;
  }
  const Step needed = schedule.SendStep(last, 0);
  check.Expect(
      config.steps >= needed, "run.steps",
      absl::StrCat("at least ", needed, ", when fragment ", last, " is sent for the first time (sync.sync_every is ",
                   config.sync.sync_every, "), or 0, without an end"),
      absl::StrCat(config.steps));
}

std::vector<std::string> StepsAdvice(const core::RunConfig& config) {
  const core::FragmentSchedule schedule = config.sync.Schedule();
  Step last = 0;
  for (FragmentId p = 0; p < schedule.num_fragments(); ++p) {
    last = std::max(last, schedule.SendStep(p, schedule.FirstBaseAfter(p, config.steps) - 1));
  }
  if (config.steps == 0 || last >= config.steps) return {};
  return {absl::StrCat(
      "run.steps is ", config.steps, ": the last ", config.steps - last, " steps come after the last send, at step ",
      last, ", and are in no update; a multiple of sync.sync_every (", config.sync.sync_every, ") leaves none out")};
}

}  // namespace causeway::formats
