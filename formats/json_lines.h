// Texts of a file of JSON lines: one object a line, of which "text" is taken and the rest ignored.
//
//   {"text": "It rains.", "id": 7}
//   {"text": "The sea\nrises."}          ─►  It rains.\nThe sea\nrises.\n       each text is followed by one newline
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway::formats {

// All texts as UTF-8, in memory. INVALID_ARGUMENT names file, line, and the expected and the actual value.
absl::StatusOr<std::vector<std::byte>> ReadJsonLines(const std::string& path);

}  // namespace causeway::formats
