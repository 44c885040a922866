// The place of a bad value in a model, as part of the absl::Status that reports it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace causeway::core {

struct ValuePlace {
  std::string tensor;
  int64_t index = 0;  // row-major
};

absl::Status WithPlace(absl::Status status, const ValuePlace& place);
std::optional<ValuePlace> PlaceOf(const absl::Status& status);

// The same message and place under another code.
absl::Status WithCode(absl::StatusCode code, const absl::Status& status);

}  // namespace causeway::core
