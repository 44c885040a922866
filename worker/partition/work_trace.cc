#include "worker/partition/work_trace.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<WorkTrace>> WorkTrace::Open(const std::string& path, const Amounts& speeds) {
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return absl::UnavailableError(absl::StrCat("--trace: cannot write ", path, ": ", std::strerror(errno)));
  }
  nlohmann::ordered_json event{{"name", "resources"}, {"ph", "M"}, {"pid", 0}, {"tid", 0}};
  for (const auto& [resource, speed] : speeds) event["args"][resource] = speed;
  std::fputs(absl::StrCat("[\n", event.dump(), ",\n").c_str(), file);  // readers take a list that does not end
  return std::unique_ptr<WorkTrace>(new WorkTrace(file));
}

WorkTrace::~WorkTrace() { std::fclose(file_); }

void WorkTrace::Add(const std::string& name, core::Clock::TimePoint begin, const Amounts& uses) {
  if (written_ == kSteps) return;
  const double end_s = core::SystemClock().SecondsSince(start_);
  operations_.push_back({name, end_s - core::SystemClock().SecondsSince(begin), end_s, uses});
}

void WorkTrace::EndStep(core::Step t) {
  if (written_ == kSteps) return;
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
    std::fputs(absl::StrCat(event.dump(), ",\n").c_str(), file_);
  }
  std::fflush(file_);
  operations_.clear();
}

}  // namespace causeway::worker
