#include "worker/parallel/work_trace.h"

#include <nlohmann/json.hpp>

#include "core/check.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<WorkTrace>> WorkTrace::Open(const std::string& path, const Amounts& speeds) {
  ASSIGN_OR_RETURN(std::unique_ptr<TraceFile> file, TraceFile::Open(path));
  nlohmann::ordered_json event{{"name", "resources"}, {"ph", "M"}, {"pid", 0}, {"tid", 0}};
  for (const auto& [resource, speed] : speeds) event["args"][resource] = speed;
  file->Add(event.dump());
  return std::unique_ptr<WorkTrace>(new WorkTrace(std::move(file)));
}

void WorkTrace::Add(const std::string& name, core::Clock::TimePoint begin, const Amounts& uses) {
  if (written_ == TraceFile::kSteps) return;
  const double end_s = core::SystemClock().SecondsSince(start_);
  operations_.push_back({name, end_s - core::SystemClock().SecondsSince(begin), end_s, uses});
}

void WorkTrace::EndStep(core::Step t) {
  if (written_ == TraceFile::kSteps) return;
  ++written_;
  for (const Operation& operation : operations_) {
    nlohmann::ordered_json event{{"name", operation.name},
                                 {"ph", "X"},
                                 {"ts", 1e6 * operation.begin_s},
                                 {"dur", 1e6 * (operation.end_s - operation.begin_s)},
                                 {"pid", 0},
                                 {"tid", 0},
                                 {"args", {{"step", t}, {"uses", nlohmann::ordered_json::object()}}}};
    for (const auto& [resource, amount] : operation.uses) event["args"]["uses"][resource] = amount;
    file_->Add(event.dump());
  }
  file_->Flush();
  operations_.clear();
}

}  // namespace causeway::worker
