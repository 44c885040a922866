// Removes the rows that a snapshot makes superfluous: their payload is deleted from disk only afterwards, so that a
// crash in between leaves bytes that no row names, which the next start removes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "server/store/sqlite.h"

namespace causeway::server {

struct PruneLimits {
  int64_t keep = 0;                  // number of snapshots kept of each fragment
  int64_t max_update_log_bytes = 0;  // bound over all fragments; updates after a fragment's newest snapshot stay
  core::Version kept = -1;           // snapshots of that version stay, too
};

// REQUIRES: the row of a snapshot of this fragment was written, in a transaction of the caller that is open.
// RETURNS: the names of snapshots that can be deleted.
absl::StatusOr<std::vector<std::string>> PruneRows(Database& database, core::FragmentId fragment,
                                                   const PruneLimits& limits);

absl::StatusOr<std::vector<int64_t>> LiveSegments(Database& database);
absl::StatusOr<std::vector<std::string>> LiveSnapshots(Database& database);  // their file names

// Forgets an interrupted seed: without the run's record, nothing names its snapshots.
absl::Status ForgetUnfinishedSeed(Database& database);

// Removes the snapshots of the directory that are not among `live`; other files stay.
absl::Status RemoveSnapshotsBut(const std::string& directory, const std::vector<std::string>& live);

}  // namespace causeway::server
