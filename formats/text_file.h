// A text file that a person brings: a schedule, costs, a config. Windows' byte order mark is taken off, and a file of
// another kind is refused by its name: a reader of YAML or JSON would only say that the first character is wrong.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace causeway::formats {

// All of it, at most `max_bytes`. INVALID_ARGUMENT: "PATH: expected text, got a web page (HTML): …".
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

}  // namespace causeway::formats
