// sync.json of a checkpoint: everything but the large arrays and the chunks.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/site/checkpoint_store.h"

namespace causeway::worker {

std::string CheckpointToJson(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint);

// The inverse, without arrays; a contribution that is not admitted has no chunks yet. INVALID_ARGUMENT for anything
// that CheckpointToJson does not write.
absl::StatusOr<LoadedCheckpoint> CheckpointFromJson(const std::string& text);

std::string IdentityToJson(const CheckpointIdentity& identity);
absl::StatusOr<CheckpointIdentity> IdentityFromJson(const std::string& text);

}  // namespace causeway::worker
