// state.json of a snapshot: everything but the large arrays.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/store/state_store.h"

namespace causeway::server {

// Without fragments' states and chunks: those are files of their own, found by the names that the JSON implies.
std::string StateToJson(const SavedState& state);

// The inverse; fragments have updates and contributions without chunks, and no state. INVALID_ARGUMENT for anything
// that StateToJson does not write.
absl::StatusOr<SavedState> StateFromJson(const std::string& text);

}  // namespace causeway::server
