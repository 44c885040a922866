// Reads YAML into any protobuf message, by the message's own description: keys are field names, sections are messages,
// lists are repeated fields, free-form sections are maps. So a schema is written once, in the .proto, and a new key
// needs no code here. Only form is judged (known keys, types, each key once); what values mean is
// formats/run_fields.h's.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/link_levels.h"
#include "formats/field_check.h"

namespace causeway::formats {

// `origin`, which is also that of `check`, comes with the file's name and leaves with the line of every key that was
// read. All mistakes go into `check`; after one in the YAML itself nothing more is read. Numbers are strict: 1.5 or "1"
// is no integer, 1e3 is a number, .nan and .inf are, and nothing is rounded to fit.
// `advice`: what to expect instead of some unknown keys, by their paths.
using KeyAdvice = std::map<std::string, std::string>;
void ReadYamlMessage(std::string_view text, Origin& origin, google::protobuf::Message& message, FieldCheck& check,
                     const KeyAdvice& advice = {});

// A key with its value, as a document of its own: "inner:\n  lr: 1e-4\n".
std::string YamlOf(const std::string& key, const std::string& value);

// Reads the link levels of a site from YAML.
//
//   levels:                                        # innermost first; `of` counts groups of the one below
//     - {name: pair, of: 2, gbyte_per_s: 200, latency_us: 2}
//     - {name: node, of: 4, gbyte_per_s: 50, latency_us: 3}
//     - {name: site, of: 48, gbyte_per_s: 12.5, latency_us: 10}
//     - {name: wan, of: 4, mbit_per_s: 200, rtt_ms: 50}     # may be left out
//
// The schema is proto/causeway/v1/levels.proto.

// INVALID_ARGUMENT: "levels.yaml:3: levels[1].of: expected 1 to 1000000, got 0".
absl::StatusOr<core::LinkLevels> ParseLevelsYaml(std::string_view text, const std::string& file_name);
absl::StatusOr<core::LinkLevels> ReadLevelsYaml(const std::string& path);

}  // namespace causeway::formats
