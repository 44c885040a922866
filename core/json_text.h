// Says why a text that a person brings is no JSON.
//
//   {"layers": 16,
//    "layer_bytes": NaN}   ─►   costs.json: expected JSON, line 2, column 17: got NaN, which JSON does not have
//
// Pure.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace causeway::core {

struct JsonFault {
  size_t offset = 0;  // byte of the text
  std::string got;    // for people
};

// The first fault of a text that no parser takes.
JsonFault FaultOfJson(std::string_view text);

// INVALID_ARGUMENT for such a text, with the place of the fault.
absl::Status JsonError(std::string_view text, const std::string& name);

}  // namespace causeway::core
