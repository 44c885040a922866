// Reads a pipeline's steps from the trace of causeway-worker --trace: when each operation ran.
//
//   [{"name": "0F1", "ts": 12.5, "dur": 3.0, "pid": 0, "tid": 0, "args": {"step": 1}},     µs; tid: the device
//    …                                                                                     a list that need not end
//
// Pure.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "core/json_text.h"
#include "core/text.h"
#include "plan/pipeline_time.h"

namespace causeway::plan {

// The lines of a trace in Chrome's trace-event format, one event each, as causeway-worker --trace writes them.
//
//   [
//   {"name": …, …},        a list that need not end
//
// Pure.

// INVALID_ARGUMENT: "NAME:LINE: expected …, got …".
using BadEvent = std::function<absl::Status(const char* expected)>;

// No program writes a trace with numbers beyond these, whose sums could overflow.
inline constexpr double kMostMicroseconds = 1e12, kMostAmount = 1e24;

// Whether the event has a number of that name from 0 to `most`.
inline bool HasNumber(const nlohmann::json& event, const char* key, double most) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() && found->get<double>() >= 0 && found->get<double>() <= most;
}

// Calls `take(event, bad)` for each line with an event, until a call fails; another JSON value becomes a null event.
inline absl::Status ForEachTraceEvent(
    const std::string& text, const std::string& name,
    const std::function<absl::Status(const nlohmann::json& event, const BadEvent& bad)>& take) {
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripSuffix(absl::StripAsciiWhitespace(line), ",");
    if (line.empty() || line == "[" || line == "]") continue;
    const std::string_view words(line.data(), line.size());
    std::optional<nlohmann::json> event = core::TryParseJson<nlohmann::json>(words);
    if (!event) {
      const core::JsonFault fault = core::FaultOfJson(words);
      const size_t column = core::PlaceInText(words, fault.offset).column;
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": expected JSON, line ", line_number, ", column ", column, ": got ", fault.got));
    }
    if (!event->is_object()) event.emplace();
    RETURN_IF_ERROR(take(*event, [&](const char* expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", line_number, ": expected ", expected, ", got ", core::ShownJson(*event)));
    }));
  }
  return absl::OkStatus();
}

// The median over all steps but the first of each start and end, with the step's begin as 0, and of the makespan; of
// each place only the first rank counts. INVALID_ARGUMENT names the line: not a trace, or one of another schedule.
absl::StatusOr<PlayedPipeline> ReadPipelineTrace(const std::string& text, const std::string& name,
                                                 const PipelineSchedule& schedule);

}  // namespace causeway::plan
