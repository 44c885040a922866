// Reads the link levels of a site from YAML.
//
//   levels:                                        # innermost first; `of` counts groups of the one below
//     - {name: pair, of: 2, gbyte_per_s: 200, latency_us: 2}
//     - {name: node, of: 4, gbyte_per_s: 50, latency_us: 3}
//     - {name: site, of: 48, gbyte_per_s: 12.5, latency_us: 10}
//     - {name: wan, of: 4, mbit_per_s: 200, rtt_ms: 50}     # may be left out
//
// The schema is proto/causeway/v1/levels.proto.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/link_levels.h"

namespace causeway::formats {

// INVALID_ARGUMENT: "levels.yaml:3: levels[1].of: expected 1 to 1000000, got 0".
absl::StatusOr<core::LinkLevels> ParseLevelsYaml(std::string_view text, const std::string& file_name);
absl::StatusOr<core::LinkLevels> ReadLevelsYaml(const std::string& path);

}  // namespace causeway::formats
