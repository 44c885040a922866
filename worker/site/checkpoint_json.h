// sync.json of a checkpoint: everything but the large arrays and the chunks. It names the files beside it with their
// digests, and ends with its own: the last member is the XXH3-64 of all text before it.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "formats/file_digest.h"
#include "worker/site/checkpoint_store.h"

namespace causeway::worker {

// The JSON of a checkpoint in the folder of that number, with these files beside it, by name; it ends with its own
// digest. `files` null: the JSON is not written to a file, and has no digest.
std::string CheckpointToJson(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint, int64_t number = 0,
                             const std::map<std::string, formats::FileDigest>* files = nullptr);

// The inverse, without arrays; a contribution that is not admitted has no chunks yet. INVALID_ARGUMENT for anything
// that CheckpointToJson does not write, or would have written differently. FAILED_PRECONDITION: the checkpoint has
// another format.
absl::StatusOr<LoadedCheckpoint> CheckpointFromJson(const std::string& text);

std::string IdentityToJson(const CheckpointIdentity& identity);
absl::StatusOr<CheckpointIdentity> IdentityFromJson(const std::string& text);

}  // namespace causeway::worker
