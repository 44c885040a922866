// Texts of a file of JSON lines: one object a line, of which "text" is taken and the rest ignored, also NaN, which
// Python writes though JSON has none, and halves of characters. Blank lines are skipped.
//
//   {"text": "It rains.", "id": 7}
//   {"text": "The sea\nrises."}          ─►  It rains.\nThe sea\nrises.\n       each text is followed by one newline
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway::formats {

// All texts as UTF-8, in memory. INVALID_ARGUMENT names the file `path`, line, column where there is one, and the
// expected and the actual value.
absl::StatusOr<std::vector<std::byte>> ReadJsonLines(const std::string& path, std::string_view contents);

}  // namespace causeway::formats
