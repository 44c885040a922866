#include "plan/pipeline_schedule.h"

#include "absl/strings/str_cat.h"

namespace causeway::plan {

std::string OperationText(const Operation& operation) {
  const char letter = kOperationLetters[static_cast<int>(operation.kind)];
  std::string text = operation.copy == 0 ? "" : absl::StrCat("r", operation.copy, ".");
  absl::StrAppend(&text, operation.stage, std::string(1, letter));
  if (IsCompute(operation.kind)) absl::StrAppend(&text, operation.micro_batch);
  return text;
}

std::string StepText(const ScheduleStep& step) {
  if (!step.second) return OperationText(step.first);
  return absl::StrCat("(", OperationText(step.first), ";", OperationText(*step.second), ")");
}

}  // namespace causeway::plan
