#include "plan/torch_csv.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"

namespace causeway::plan {

absl::StatusOr<std::string> TorchCsv(const PipelineSchedule& schedule) {
  if (schedule.copies != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("V9: expected one copy of the weights, since a stage of PyTorch is on "
                     "one rank, got ",
                     schedule.copies));
  }
  std::string text;
  for (const auto& list : schedule.lists) {
    std::vector<std::string> cells;
    for (const ScheduleStep& step : list) {
      if (!IsCompute(step.first.kind)) continue;
      cells.push_back(step.second ? absl::StrCat(StepText(step), "OVERLAP_F_B") : StepText(step));
    }
    absl::StrAppend(&text, absl::StrJoin(cells, ","), "\n");
  }
  return text;
}

}  // namespace causeway::plan
