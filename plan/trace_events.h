// The lines of a trace in Chrome's trace-event format, one event each, as causeway-worker --trace writes them.
//
//   [
//   {"name": …, …},        a list that need not end
//
// Pure.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "core/json_text.h"
#include "core/text.h"

namespace causeway::plan {

// INVALID_ARGUMENT: "NAME:LINE: expected …, got …".
using BadEvent = std::function<absl::Status(const char* expected)>;

// Calls `take(event, bad)` for each line that has one, until it fails; a line of another JSON value gives a null.
inline absl::Status ForEachTraceEvent(
    const std::string& text, const std::string& name,
    const std::function<absl::Status(const nlohmann::json& event, const BadEvent& bad)>& take) {
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripSuffix(absl::StripAsciiWhitespace(line), ",");
    if (line.empty() || line == "[" || line == "]") continue;
    const nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_discarded()) {
      const core::JsonFault fault = core::FaultOfJson(std::string_view(line.data(), line.size()));
      const size_t column = core::PlaceInText({line.data(), line.size()}, fault.offset).column;
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": expected JSON, line ", line_number, ", column ", column, ": got ", fault.got));
    }
    RETURN_IF_ERROR(take(event.is_object() ? event : nlohmann::json(), [&](const char* expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", line_number, ": expected ", expected, ", got ", line.substr(0, 80)));
    }));
  }
  return absl::OkStatus();
}

}  // namespace causeway::plan
